"""Parser of ``faulthandler`` stacks, and search for a thread's position in the user's program. Pure."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.common.contract.log import library_of

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'\s+File "(.*)", line (\d+|\?\?\?) in (.*)')


@dataclass(frozen=True)
class Frame:
    """Frame of a thread's Python stack."""

    path: str
    line: int
    function: str

    @property
    def library(self) -> str:
        """Package that the code belongs to; empty for the user's code."""
        if self.path.startswith("<") and self.path not in ("<stdin>", "<string>"):
            return "Python"
        return library_of(self.path)

    @property
    def measures(self) -> bool:
        """True for the frame that only measures the wait for data, between the user's line and what that calls."""
        return self.function == "__next__" and self.path.endswith(f"{os.sep}torch{os.sep}monitoring.py")

    def __str__(self) -> str:
        """Return file, line and function, such as "train.py:88 in main"."""
        function = "" if self.function.startswith("<") else f" in {self.function}"
        return f"{os.path.basename(self.path)}:{self.line}{function}"


@dataclass(frozen=True)
class Thread:
    """Python stack of a thread."""

    ident: int
    frames: tuple[Frame, ...]
    """Frames, innermost first."""

    @property
    def ours(self) -> bool:
        """True for a thread of this library's telemetry."""
        return any(f"{os.sep}telemetry{os.sep}" in frame.path and frame.library == "horovod" for frame in self.frames)

    @property
    def own(self) -> int | None:
        """Index of the innermost frame outside of libraries; None without one."""
        return next((index for index, frame in enumerate(self.frames) if not frame.library), None)


def parse(text: str) -> list[Thread]:
    """Return the threads in ``faulthandler`` output; other lines are ignored."""
    threads: list[Thread] = []
    frames: list[Frame] = []
    for line in text.splitlines():
        if found := _THREAD.match(line):
            frames = []
            threads.append(Thread(int(found[1], 16), ()))
        elif threads and (found := _FRAME.match(line)):
            frames.append(Frame(found[1], int(found[2]) if found[2].isdecimal() else 0, found[3]))
            threads[-1] = Thread(threads[-1].ident, tuple(frames))
    return threads


def main_thread(threads: Sequence[Thread], ident: int | None) -> Thread | None:
    """Return the thread ``ident``; otherwise the oldest, which comes last, of those that are not ours."""
    found = [thread for thread in threads if thread.ident == ident] if ident is not None else []
    others = [thread for thread in threads if not thread.ours]
    return found[0] if found else others[-1] if others else None


def place(thread: Thread | None, source: str = "") -> str:
    """Return text on where the thread is; empty if unknown.

    For example "in DataLoader.__next__ at train.py:88 in main" or "at train.py:88 in main (`time.sleep(60)`)".

    Args:
        thread: The thread, or None.
        source: Text of the user's line, if known.
    """
    if thread is None or not thread.frames:
        return ""
    own = thread.own
    if own is None:
        first = thread.frames[0]
        return f"in {_called(first)} ({os.path.basename(first.path)}:{first.line})"
    frame = thread.frames[own]
    called = [inner for inner in thread.frames[:own] if not inner.measures]
    if called:
        return f"in {_called(called[-1])} at {frame}"
    if source:
        return f"at {frame} (`{source if len(source) <= 80 else source[:77] + '...'}`)"
    return f"at {frame}"


def _called(frame: Frame) -> str:
    if frame.library == "horovod":
        return f"hvd.{frame.function.lstrip('_')}"
    stem = os.path.basename(frame.path).removesuffix(".py")
    if stem == "__init__":
        stem = os.path.basename(os.path.dirname(frame.path))
    if (stem, frame.function) == ("dataloader", "__next__"):
        stem = "DataLoader"  # the class name, which users know better than PyTorch's file name
    return f"{stem}.{frame.function}"
