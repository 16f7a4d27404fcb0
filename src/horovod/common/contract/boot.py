"""Command lines that start programs of this package in a Python interpreter, on this host and on others.

With `-c`, `-m` and a script on stdin, Python looks for modules in the current directory first. Other users may be able
to write to that directory, and these programs hold the job's key: a `zmq.py` there must not replace the library. The
option -P exists only since Python 3.11, and -I would also ignore the user's site-packages and variables. So each
program removes that entry before it imports anything. PYTHONPATH is respected, because the user has set it.

Every interpreter that this package starts gets its arguments from this module; `tools/check_starts.py` checks that.
"""

from __future__ import annotations

from pathlib import Path

_SAFE = "sys.path[:] = [p for p in sys.path if p]; "


def words(module: str, before: str = "pass") -> list[str]:
    """Return the interpreter's arguments that run `main()` of a module and exit with its result.

    Append arguments for the program to them. The interpreter uses this installation of horovod if it has none itself.

    Args:
        module: Full name of the module.
        before: Statement that runs first; it may use `os` and `sys`.
    """
    code = (
        f"import os, sys; {before}; {_SAFE}sys.path.append(sys.argv.pop(1)); "
        f"from {module} import main; sys.exit(main())"
    )
    return ["-c", code, str(Path(__file__).resolve().parents[3])]


def words_elsewhere(module: str) -> list[str]:
    """Return the same for an interpreter on another machine or in a container that has horovod installed."""
    return ["-c", f"import sys; {_SAFE}from {module} import main; sys.exit(main())"]


def words_alone(*program: str) -> list[str]:
    """Return the interpreter's arguments for a program that needs only the standard library.

    Args:
        program: Path of a file, or `-c` and code, followed by the program's arguments.
    """
    return ["-I", "-S", *program]
