"""Start programs of this package in a Python interpreter, on this host and on others.

With `-c`, `-m` and a script on stdin, Python looks for modules in the current directory first. Other users may be able
to write to that directory, and these programs hold the job's key: a `zmq.py` there must not replace the library. The
switch -P came with Python 3.11 only, and -I also leaves out the user's site-packages and variables. So each program
removes that entry before it imports anything. PYTHONPATH counts, because the user has set it.

Every interpreter that this package starts gets its arguments from this module; `tools/check_starts.py` checks it.
"""

from __future__ import annotations

from pathlib import Path

_SAFE = "sys.path[:] = [p for p in sys.path if p]; "


def words(module: str, before: str = "pass") -> list[str]:
    """Return the interpreter's arguments that run `main()` of a module and exit with what it returns.

    Arguments for the program follow them. The interpreter uses this installation of horovod if it has none of its own.

    Args:
        module: The full name of the module.
        before: A statement that runs first; it may use `os` and `sys`.
    """
    code = (
        f"import os, sys; {before}; {_SAFE}sys.path.append(sys.argv.pop(1)); "
        f"from {module} import main; sys.exit(main())"
    )
    return ["-c", code, str(Path(__file__).resolve().parents[3])]


def words_elsewhere(module: str) -> list[str]:
    """Return the same for an interpreter on another machine, such as a container's, that has horovod installed."""
    return ["-c", f"import sys; {_SAFE}from {module} import main; sys.exit(main())"]


def words_alone(*program: str) -> list[str]:
    """Return the interpreter's arguments for a program that needs the standard library only.

    Args:
        program: The path of a file, or `-c` and code, and the program's arguments.
    """
    return ["-I", "-S", *program]
