"""What a worker of `horovod.run` executes: the function from the inherited file, its result into the other one.

Both files are inherited from this job's agent and have no name that another program could open, so what is unpickled
here comes from the process that called `horovod.run`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from horovod.runner.workers import FUNCTION_FD, RESULT_FD


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    """The function and its arguments as bytes, with the import path under which they can be unpacked."""
    return pickle.dumps((list(sys.path), cloudpickle.dumps((function, tuple(args), kwargs))))


def _take_descriptor(name: bytes) -> int:
    """The number in the variable, which is removed: children of the function have no use for it."""
    fd = int(os.environb.pop(name))
    os.set_inheritable(fd, False)
    return fd


def main() -> None:
    """Run the function. An exception in it ends the process with a traceback and exit code 1, as in a script."""
    source, target = _take_descriptor(FUNCTION_FD), _take_descriptor(RESULT_FD)
    with open(source, "rb", buffering=0) as file:
        path, body = pickle.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    sys.path += [entry for entry in path if entry not in sys.path]
    function, args, kwargs = cloudpickle.loads(body)
    result = cloudpickle.dumps(function(*args, **kwargs))
    view = memoryview(result)
    while view:
        view = view[os.write(target, view) :]
    os.close(target)


if __name__ == "__main__":
    main()
