"""Whose code a frame is; warnings that point at the user's line, however many frames of others lie between."""

from __future__ import annotations

import re
import sys
import warnings
from types import FrameType

_BETWEEN = frozenset(
    ("horovod", "torch", "tensorflow", "keras", "tf_keras", "jax", "contextlib", "functools", "importlib")
)
"""Packages whose frames are passed over: ours, frameworks that call us, and what both wrap functions with."""

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_STANDARD = re.compile(r"[/\\]lib(?:64)?[/\\]python\d[^/\\]*[/\\]|^<frozen ")
_PARTS = (
    *("_arrays", "_jax", "_keras", "benchmark", "chaos", "common", "data", "jax", "keras", "mxnet", "numpy", "ray"),
    *("recorder", "runner", "spark", "tensorflow", "timeline", "torch"),
)
"""Folders of this package. A user's own directory may be called horovod, too."""
_OURS = re.compile(r"[/\\]horovod[/\\](?:" + "|".join(_PARTS) + r")[/\\]")


def library_of(path: str) -> str:
    """Whose code a file is, by its path: the package's name, or empty for the user's own."""
    if _OURS.search(path):
        return "horovod"
    found = _INSTALLED.search(path)
    if found:
        return found[1].removesuffix(".py")
    return "Python" if _STANDARD.search(path) else ""


def user_stacklevel() -> int:
    """``stacklevel`` for ``warnings.warn`` in the caller of this function, such that the nearest frame of the user's is
    blamed; without one the outermost frame."""
    level, frame = 0, _caller(sys._getframe())
    while frame is not None:
        level += 1
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _BETWEEN:
            break
        frame = _caller(frame)
    return level


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """``warnings.warn``, at the user's line."""
    warnings.warn(message, category, stacklevel=user_stacklevel())


def _caller(frame: FrameType) -> FrameType | None:
    """The next frame outwards that ``warnings`` counts: it leaves out importlib's own."""
    outer = frame.f_back
    while outer is not None and "importlib" in outer.f_code.co_filename and "_bootstrap" in outer.f_code.co_filename:
        outer = outer.f_back
    return outer
