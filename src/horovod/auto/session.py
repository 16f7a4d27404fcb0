"""This process's rank and script, the report of what was changed, and how functions are changed."""

import atexit
import collections
import os
import sys
import sysconfig
import time
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
        self.started = time.time()
        self.touched: collections.Counter[str] = collections.Counter()
        self.suspended = 0  # greater than 0 while Keras trains, whose own use of PyTorch must not be changed

    @property
    def lr_factor(self) -> float:
        """Factor by which learning rates are multiplied."""
        return {"none": 1.0, "linear": float(self.size), "sqrt": self.size**0.5}[self.lr_scale]

    def say(self, text: str) -> None:
        """Print a line to stderr on rank 0."""
        if self.rank == 0:
            print(f"horovod.auto: {text}", file=sys.stderr, flush=True)

    def change(self, kind: str, text: str) -> None:
        """Count a changed object of this kind and report it."""
        self.touched[kind] += 1
        self.say(f"{script_line()}: {text}")


session = Session()


@atexit.register
def _summarize() -> None:
    counts = ", ".join(f"{n} {kind}" for kind, n in session.touched.items())
    if session.script:
        session.say(f"ends; touched: {counts or 'nothing, each rank has run the whole script'}")


def calling_frame(*through: str) -> Any:
    """Return the frame that called a changed function, or called these modules, which called it."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OURS) or frame.f_globals.get("__name__", "").split(".")[0] in through:
        frame = frame.f_back
    return frame


def is_script(frame: Any) -> bool:
    """Return True if a frame belongs to the user's program, not to Python, an installed package or Horovod."""
    name = frame.f_code.co_filename
    return not name.startswith((*_LIBRARIES, _OURS, "<")) and "-packages" + os.sep not in name


def script_line() -> str:
    """Return "file:line" of the innermost frame that belongs to the user's program."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_script(frame):
        frame = frame.f_back
    if frame is None:
        return session.script
    name, short = frame.f_code.co_filename, os.path.relpath(frame.f_code.co_filename)
    return f"{name if short.startswith(os.pardir) else short}:{frame.f_lineno}"


def refuse(why: str, instead: str, line: str = "") -> NoReturn:
    """Raise AutoError with the line of the script."""
    line = line or script_line()
    raise AutoError(f"horovod.auto: {line}: --auto cannot train this script correctly: {why}; {instead}")


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by ``around``, whose first argument is the function that it replaces."""
    plain = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return around(plain, *args, **kwargs)

    call.__name__, call.__doc__ = name, plain.__doc__
    setattr(owner, name, call)
