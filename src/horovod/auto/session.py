"""This process's rank and script, and the report of what was changed."""

import atexit
import collections
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, NoReturn

_OURS = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class AutoError(SystemExit):
    """Refusal of a script that ``--auto`` cannot train correctly. ``except Exception`` does not catch it."""


class Session:
    """State of ``horovod.auto`` in this process."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.lr_scale = "none"
        self.script = ""
        self.seed = 0
        self.touched: collections.Counter[str] = collections.Counter()
        self.suspended = 0
        """Greater than 0 while Keras trains, whose own use of PyTorch must not be changed."""

    @property
    def lr_factor(self) -> float:
        """Factor by which learning rates are multiplied."""
        return {"none": 1.0, "linear": float(self.size), "sqrt": self.size**0.5}[self.lr_scale]

    def say(self, text: str) -> None:
        """Print a line to stderr on rank 0."""
        if self.rank == 0:
            print(f"horovod.auto: {text}", file=sys.stderr, flush=True)

    def change(self, kind: str, text: str, line: str = "") -> None:
        """Count a changed object of this kind and report it."""
        self.touched[kind] += 1
        self.say(f"{line or script_line()}: {text}")

    def summarize(self) -> None:
        """Print how many objects of each kind were changed, at the end of the process."""
        counts = ", ".join(f"{n} {kind}" for kind, n in self.touched.items())
        self.say(f"ends; touched: {counts}" if counts else "ends; touched nothing: each rank has run the whole script")


session = Session()
atexit.register(lambda: session.script and session.summarize())


def is_script(filename: str) -> bool:
    """Return True if a file belongs to the user, not to Python, an installed package or Horovod."""
    return not filename.startswith((*_LIBRARIES, _OURS, "<")) and f"{os.sep}site-packages{os.sep}" not in filename


def script_line() -> str:
    """Return "file:line" of the innermost frame that belongs to the user's program."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_script(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return session.script
    name, short = frame.f_code.co_filename, os.path.relpath(frame.f_code.co_filename)
    return f"{name if short.startswith(os.pardir) else short}:{frame.f_lineno}"


def called_by_script(depth: int) -> bool:
    """Return True if the frame ``depth`` levels above the caller belongs to the user's program."""
    return is_script(sys._getframe(depth + 1).f_code.co_filename)


def refuse(why: str, instead: str, line: str = "") -> NoReturn:
    """Raise AutoError with the line of the script."""
    raise AutoError(
        f"horovod.auto: {line or script_line()}: --auto cannot train this script correctly: {why}; {instead}"
    )


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by what ``make`` builds from it."""
    plain = getattr(owner, name)
    made = make(plain)
    made.__name__, made.__doc__ = name, plain.__doc__
    setattr(owner, name, made)
