"""How programs of ours are started in a Python, on this host and on others; nothing that is started here lies in a file
that a user would run.

With `-c` and `-m` Python looks for modules in the current directory before anywhere else. That may be a directory in
which others can write, and our programs hold the job's key: a `zmq.py` there must not become the library. Python's own
switch against that (-P) came with 3.11, and -I would leave out the user's site-packages and variables too. So the
first thing that each of our programs does is to take that entry away. PYTHONPATH counts: the user has set it.
"""

from __future__ import annotations

from pathlib import Path


def words(module: str, before: str = "pass") -> list[str]:
    """What follows the interpreter so that `main()` of the module runs, with the arguments that come after these, and
    what it returns becomes the exit code. `before`: a statement, with `os` and `sys`, that runs first.

    Where no horovod is installed for that interpreter, this one is used.
    """
    code = (
        f"import os, sys; {before}; sys.path[:] = [p for p in sys.path if p]; sys.path.append(sys.argv.pop(1)); "
        f"from {module} import main; sys.exit(main())"
    )
    return ["-c", code, str(Path(__file__).resolve().parents[3])]
