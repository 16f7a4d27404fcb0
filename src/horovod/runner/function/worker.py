"""Worker process of `horovod.run`, which reads the function from one file and writes its outcome to another file.

All data that this module unpickles was written by the process that called `horovod.run`. The worker inherits the files
from the job's agent. The files have no names, so other programs cannot open them. With mpirun,
the files are in a folder that only this user can access.
"""

from __future__ import annotations

import linecache
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Import these libraries before the caller's folders are added to `sys.path`, which could contain other versions.
import cloudpickle
import msgspec  # noqa: F401
import zmq  # noqa: F401

from horovod.common.contract import private_files
from horovod.common.contract.worker_env import WORKER, WorkerEnv
from horovod.runner.agent.workers import FUNCTION_FD, RESULT_FD
from horovod.runner.base.job_result import OutcomeError
from horovod.runner.function import outcome

FOLDER = "HOROVOD_RUN_FOLDER"
FUNCTION = "function"


def result_name(rank: int) -> str:
    """Return the name of the file that contains the rank's result."""
    return f"result.{rank}"


def _open_files() -> tuple[int, int, int]:
    """Return the descriptors of the function file and the outcome file, and this process's rank."""
    folder = os.environ.pop(FOLDER, None)
    if folder is None:
        return _take_descriptor(FUNCTION_FD), _take_descriptor(RESULT_FD), _rank()
    rank = WorkerEnv.from_environ().rank
    # Check the owner and mode of the opened folder, because its path could refer to a different folder a moment later.
    with private_files.closing(private_files.open_folder(folder)) as at:
        found = os.fstat(at)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise SystemExit(f"{FOLDER} must be a folder of this user with mode 0700, got {folder!r}")
        source = os.open(FUNCTION, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return source, os.open(result_name(rank), flags, 0o600, dir_fd=at), rank


def _rank() -> int:
    """Return this process's rank. In an elastic job, it is the expected rank until hvd.init() is called."""
    return int(os.environ.get("HOROVOD_RANK") or os.environ[WORKER])


def _take_descriptor(name: bytes) -> int:
    """Return the file descriptor stored in the environment variable, and make it non-inheritable.

    Remove the variable, because child processes do not need it.
    """
    fd = int(os.environb.pop(name))
    os.set_inheritable(fd, False)
    return fd


def _unpack(source: int, rank: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    with open(source, "rb", buffering=0) as file:
        (front, rest), code, body = pickle.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    sys.path[:] = joined_path(front, sys.path, rest)
    # Add the caller's notebook code to linecache for tracebacks. A modification time of None marks code without a file.
    for name, lines in code.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    try:
        function, args, kwargs = cloudpickle.loads(body)
    except Exception as error:
        raise OutcomeError(
            f"rank {rank} cannot unpack the function or its arguments: {type(error).__name__}: {error}; the modules "
            "that they come from have to be importable here, and in the versions of the caller"
        ) from error
    return function, args, kwargs


def joined_path(front: Sequence[str], own: Sequence[str], rest: Sequence[str]) -> list[str]:
    """Return the worker's module search path, with the caller's entries before and after the worker's own.

    `front` and `rest` are the caller's entries that come before and after its standard library. The caller's libraries
    come last, because another host can have other versions of these libraries.
    """
    return list(dict.fromkeys([*front, *own, *rest]))


def main() -> None:
    """Run the function. An exception ends the process with a traceback and exit code 1, as in a script."""
    source, target, rank = _open_files()
    try:
        function, args, kwargs = _unpack(source, rank)
        value = function(*args, **kwargs)
        outcome.write_value(target, value, _rank() if WORKER in os.environ else rank)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        _fail(target, error)
    os.close(target)


def _fail(target: int, error: BaseException) -> None:
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # Begin the traceback with the user's function.
    text = outcome.format_traceback(error)
    try:
        outcome.write_exception(target, error, text)
    except OSError as trouble:  # The result file is in memory. Writing fails if memory is exhausted.
        print(f"the exception cannot be sent back: {trouble}", file=sys.stderr)
    if sys.excepthook is sys.__excepthook__:
        # The default hook would omit the lines of notebook cells, because these are not in files.
        print(text, end="", file=sys.stderr, flush=True)
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)


if __name__ == "__main__":
    main()
