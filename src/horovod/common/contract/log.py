"""Log messages on stderr, and warnings that point at the user's code."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable
from types import FrameType

from horovod.common.contract.settings import LOG_LEVELS, Settings


def make_sink(rank: int, hide_time: bool) -> Callable[[int, str], None]:
    """Return the function (level, message) that the engine's thread calls to log a line."""

    def sink(level: int, message: str) -> None:
        name = LOG_LEVELS[level].upper() if 0 <= level < len(LOG_LEVELS) else str(level)
        stream = sys.stderr
        if stream is None:  # drop the message, because the process has no stderr or the interpreter is shutting down
            return
        stamp = ""
        if not hide_time:
            now = time.time()
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d} "
        try:
            stream.write(f"{stamp}[horovod, rank {rank}] {name}: {message}\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # ignore the error, because a closed stderr must not stop training

    return sink


def warner(rank: int, settings: Settings) -> Callable[[str], None]:
    """Return a function that logs a warning in the engine's format."""
    warning = LOG_LEVELS.index("warning")
    sink = make_sink(rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
    shown = LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) <= warning
    return lambda text: sink(warning, text) if shown else None


_BETWEEN = frozenset(
    ("horovod", "torch", "tensorflow", "keras", "tf_keras", "jax", "contextlib", "functools", "importlib")
)
"""Packages whose frames are skipped: this one, frameworks that call it, and modules that wrap functions."""

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_STANDARD = re.compile(r"[/\\]lib(?:64)?[/\\]python\d[^/\\]*[/\\]|^<frozen ")
_PARTS = (
    *("_arrays", "_jax", "_keras", "auto", "benchmark", "chaos", "common", "data", "jax", "keras", "mxnet", "numpy"),
    *("planner", "ray", "recorder", "runner", "spark", "strategies", "tensorflow", "timeline", "torch"),
)
"""Directories of this package, which identify its frames even if a user's directory is called horovod."""
_OURS = re.compile(r"[/\\]horovod[/\\](?:" + "|".join(_PARTS) + r")[/\\]")


def library_of(path: str) -> str:
    """Return the package that contains a source file, or "" for the user's own code."""
    if _OURS.search(path):
        return "horovod"
    found = _INSTALLED.search(path)
    if found:
        return found[1].removesuffix(".py")
    return "Python" if _STANDARD.search(path) else ""


def user_stacklevel() -> int:
    """Return the ``stacklevel`` for which the caller's ``warnings.warn`` points at the user's code.

    The stack level is that of the user's nearest frame, or of the outermost frame if none is the user's.
    """
    level, frame = 0, _caller(sys._getframe())
    while frame is not None:
        level += 1
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _BETWEEN:
            break
        frame = _caller(frame)
    return level


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Call ``warnings.warn`` with a stack level that points at the user's code."""
    warnings.warn(message, category, stacklevel=user_stacklevel())


def _caller(frame: FrameType) -> FrameType | None:
    """Return the next outer frame, skipping importlib frames as ``warnings`` does."""
    outer = frame.f_back
    while outer is not None and "importlib" in outer.f_code.co_filename and "_bootstrap" in outer.f_code.co_filename:
        outer = outer.f_back
    return outer
