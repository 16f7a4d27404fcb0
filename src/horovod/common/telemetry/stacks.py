"""Python stacks of this process: capturing them for the engine, parsing them, and finding the user's code in them.

The engine can obtain the stacks even while Python does not run (core/trace/answer.h). ``StackReporter`` registers
``faulthandler`` as the handler of an otherwise unused signal. No process sends this signal. Instead, the engine calls
the handler directly, from any thread, and the handler writes all stacks into memory.
"""

import contextlib
import faulthandler
import gc
import json
import linecache
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from horovod.common.contract.log import library_of
from horovod.common.telemetry.message_bus import MessageBus

if TYPE_CHECKING:
    from horovod._core import Engine

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'\s+File "(.*)", line (\d+|\?\?\?) in (.*)')


@dataclass(frozen=True)
class Frame:
    """One frame of a thread's Python stack."""

    path: str
    line: int
    function: str

    @property
    def library(self) -> str:
        """Package that contains the frame's code, or "" for the user's code."""
        if self.path.startswith("<") and self.path not in ("<stdin>", "<string>"):
            return "Python"
        return library_of(self.path)

    @property
    def measures(self) -> bool:
        """True for Horovod's own frame that wraps a data loader's ``__next__`` to measure the wait for data."""
        return self.function == "__next__" and self.path.endswith(f"{os.sep}torch{os.sep}monitoring.py")

    def __str__(self) -> str:
        """Format the frame as file, line and function, such as "train.py:88 in main"."""
        function = "" if self.function.startswith("<") else f" in {self.function}"
        return f"{os.path.basename(self.path)}:{self.line}{function}"


@dataclass(frozen=True)
class Thread:
    """Python stack of one thread."""

    ident: int
    frames: tuple[Frame, ...]
    """Frames, innermost first."""

    @property
    def is_telemetry(self) -> bool:
        """True if the thread runs Horovod's telemetry."""
        return any(f"{os.sep}telemetry{os.sep}" in frame.path and frame.library == "horovod" for frame in self.frames)

    @property
    def own(self) -> int | None:
        """Index of the innermost frame in the user's code, or None if there is none."""
        return next((index for index, frame in enumerate(self.frames) if not frame.library), None)


def parse(text: str) -> list[Thread]:
    """Parse the threads in the output of ``faulthandler``. Other lines are ignored."""
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
    """Return the thread ``ident``, or if there is none, the oldest thread that does not run Horovod's telemetry.

    ``faulthandler`` lists the oldest thread last.
    """
    found = [thread for thread in threads if thread.ident == ident] if ident is not None else []
    others = [thread for thread in threads if not thread.is_telemetry]
    return found[0] if found else others[-1] if others else None


def place(thread: Thread | None, source: str = "") -> str:
    """Describe where a thread is executing, or return "" if unknown.

    For example "in DataLoader.__next__ at train.py:88 in main" or "at train.py:88 in main (`time.sleep(60)`)".

    Args:
        thread: The thread, or None.
        source: Source line of the position in the user's program, if known.
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
        stem = "DataLoader"  # show the class DataLoader instead of PyTorch's file name, because users know it better
    return f"{stem}.{frame.function}"


# Time limit of a search in seconds, and the number of objects to visit between checks of the time.
_MOMENT, _AT_ONCE = 0.3, 20_000


class StackReporter:
    """Provides this process's Python stacks to the engine."""

    def __init__(self, bus: MessageBus, engine: "Engine", rank: int) -> None:
        from horovod import _core

        self._own = _memory("horovod-stacks")
        self._engine_file = _memory("horovod-stacks-engine")
        self._signal = _unused_signal()
        if self._signal:
            faulthandler.register(self._signal, file=self._engine_file, all_threads=True, chain=False)
        self.answerer = engine.answerer(rank, bus.box, self._signal, self._engine_file.fileno())
        bus.on_topic(_core.TOPIC_STACKS, self._give)
        engine.watch_signal(signal.SIGUSR2, self.answerer)

    def close(self) -> None:
        self.answerer.close()
        if self._signal:
            faulthandler.unregister(self._signal)
        self._own.close()
        self._engine_file.close()

    def _give(self, _: int, body: bytes) -> None:
        # Tell the engine first that Python responds, because collecting the stacks can be slow.
        self.answerer.begun(int(body))
        text = self._stacks()
        more = {"main": threading.main_thread().ident, "source": _source(text), "loaders": _loaders()}
        self.answerer.give(int(body), text, json.dumps(more))

    def _stacks(self) -> str:
        fd = self._own.fileno()
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        faulthandler.dump_traceback(self._own, all_threads=True)
        return os.pread(fd, 1 << 18, 0).decode(errors="replace")


def _memory(name: str) -> BinaryIO:
    return open(os.memfd_create(name), "w+b", buffering=0)


def _unused_signal() -> int:
    """Return a real-time signal that has no handler, or 0 if there is none.

    This also checks /proc, because Python does not see handlers installed by C code such as ``faulthandler``.
    """
    taken = 0
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(("SigCgt:", "SigIgn:")):
                taken |= int(line.split()[1], 16)
    for number in range(signal.SIGRTMAX - 3, signal.SIGRTMIN + 4, -1):
        if signal.getsignal(number) == signal.SIG_DFL and not taken >> (number - 1) & 1:
            return number
    return 0


def _source(text: str) -> dict[str, str]:
    """Return the source line of the user's program that each thread is executing, by "path:line number"."""
    lines = {}
    for thread in parse(text):
        own = thread.own
        if own is not None and not thread.is_telemetry:
            frame = thread.frames[own]
            if found := linecache.getline(frame.path, frame.line).strip():
                lines[f"{frame.path}:{frame.line}"] = found[:200]
    return lines


def _loaders() -> dict[str, list[Any]]:
    """Return the progress of PyTorch's data loaders.

    ``live`` contains [batches returned so far, total batches] of each iterator. ``lengths`` contains the total batches
    of each data loader.
    """
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None:
        return {}
    iterators, loaders = _kinds(module._BaseDataLoaderIter), _kinds(module.DataLoader)
    wanted = iterators | loaders
    live, lengths = [], []
    for one in _among(gc.get_objects(), wanted):
        # Ignore errors from partially constructed iterators and from loaders without a length.
        with contextlib.suppress(Exception):
            if type(one) in iterators:
                live.append([one._num_yielded, len(one)])
            else:
                lengths.append(len(one))
    return {"live": live, "lengths": lengths}


def _among(objects: list[Any], targets: set[Any]) -> list[Any]:
    """Search for objects of the given classes, for at most 0.3 s.

    The time is limited because the engine assumes that Python is blocked after one second without an answer.
    """
    found: list[Any] = []
    end = time.monotonic() + _MOMENT
    for first in range(0, len(objects), _AT_ONCE):
        found += [one for one in objects[first : first + _AT_ONCE] if type(one) in targets]
        if time.monotonic() > end:
            break
    return found


def _kinds(base: Any) -> set[Any]:
    """Return a class and all its direct and indirect subclasses."""
    found = {base}
    for kind in base.__subclasses__():
        found |= _kinds(kind)
    return found
