"""Build Python command lines that start horovod's programs on this or another host.

With `-c`, `-m` or a script on stdin, Python searches for modules in the current directory first. Other users might be
able to write to that directory. Because these programs hold the job's key, a file `zmq.py` in the directory must not
replace the library. The option -P exists only since Python 3.11, and -I would also ignore the user's site-packages and
variables. So each program first removes the current directory from ``sys.path``. PYTHONPATH is respected, because the
user has set it.

Every interpreter that this package starts gets its arguments from this module; `tools/check_starts.py` checks that.
The module is also a program: ``main`` runs another module in a process that ends together with its caller.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import sys
import threading
from pathlib import Path

_SAFE = "sys.path[:] = [p for p in sys.path if p]; "


def arguments(module: str, before: str = "pass") -> list[str]:
    """Return interpreter arguments that run `main()` of a module and exit with its result.

    The caller appends the program's own arguments. If horovod is not installed for the interpreter, it uses this
    installation.

    Args:
        module: Full name of the module.
        before: Python statement to run first. It can use `os` and `sys`.
    """
    code = (
        f"import os, sys; {before}; {_SAFE}sys.path.append(sys.argv.pop(1)); "
        f"from {module} import main; sys.exit(main())"
    )
    return ["-c", code, str(Path(__file__).resolve().parents[3])]


def arguments_elsewhere(module: str) -> list[str]:
    """Return interpreter arguments as `arguments` does, but for a host or container with its own Horovod."""
    return ["-c", f"import sys; {_SAFE}from {module} import main; sys.exit(main())"]


def standalone_arguments(*program: str) -> list[str]:
    """Return interpreter arguments for a program that needs only the standard library.

    Args:
        program: Path of a file, or `-c` and code, followed by the program's arguments.
    """
    return ["-I", "-S", *program]


# The rest of this file runs a module in a process that exits when its caller exits.
#
# Standard input is one end of a socket pair, and the caller holds the other end. This process exits when the caller
# exits or closes its end. The check is active from the start, even during slow imports of frameworks.
READY, GO = b"r", b"g"


def main() -> None:
    """Run another module's ``main()``. The first argument names the module, and the others are passed to it."""
    waiting = select.poll()
    waiting.register(0, select.POLLHUP)
    # pidfd_open requires Linux 5.3 or later.
    with contextlib.suppress(AttributeError, OSError):
        # Watch the caller's process as well, because its forked children keep its end of the socket pair open.
        waiting.register(os.pidfd_open(os.getppid()), select.POLLIN)
    threading.Thread(target=_end_with_caller, args=(waiting,), daemon=True).start()
    importlib.import_module(sys.argv.pop(1)).main()


def wait_for_go() -> None:
    """Report to the caller that this process is ready, and wait for permission to continue."""
    os.write(0, READY)
    if os.read(0, 1) != GO:
        os._exit(1)


def _end_with_caller(waiting: select.poll) -> None:
    waiting.poll()
    os._exit(1)
