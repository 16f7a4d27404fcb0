"""Reporter of this process's Python stacks when the job waits, for the engine (trace/answer.h).

The engine can take the stacks even while Python does not run: a handler of ``faulthandler`` is registered here for a
signal that is otherwise unused and never sent. The engine calls it from any thread, and it writes all stacks into
memory.
"""

import contextlib
import faulthandler
import gc
import json
import linecache
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from horovod.common.telemetry import stacks
from horovod.common.telemetry.post import Post

if TYPE_CHECKING:
    from horovod._core import Engine


_MOMENT, _AT_ONCE = 0.3, 20_000  # seconds, and objects per check of the time


class Witness:
    """Stack reporter of this process."""

    def __init__(self, post: Post, engine: "Engine", rank: int) -> None:
        from horovod import _core

        self._own = _memory("horovod-stacks")
        self._theirs = _memory("horovod-stacks-engine")
        self._signal = _unused_signal()
        if self._signal:
            faulthandler.register(self._signal, file=self._theirs, all_threads=True, chain=False)
        self.answerer = engine.answerer(rank, post.box, self._signal, self._theirs.fileno())
        post.on_letter(_core.TOPIC_STACKS, self._give)
        engine.watch_signal(signal.SIGUSR2, self.answerer)

    def close(self) -> None:
        self.answerer.close()
        if self._signal:
            faulthandler.unregister(self._signal)
        self._own.close()
        self._theirs.close()

    def _give(self, _: int, body: bytes) -> None:
        self.answerer.begun(int(body))  # the following may take long in a large process
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
    """Return a real-time signal without handler; 0 if there is none.

    Also reads /proc, because Python does not know of handlers installed without it, such as the user's own of
    ``faulthandler``.
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
    """Return the text of the user's current line in each thread, by "path:number"."""
    lines = {}
    for thread in stacks.parse(text):
        own = thread.own
        if own is not None and not thread.ours:
            frame = thread.frames[own]
            if found := linecache.getline(frame.path, frame.line).strip():
                lines[f"{frame.path}:{frame.line}"] = found[:200]
    return lines


def _loaders() -> dict[str, list[Any]]:
    """Return the progress of PyTorch's data loaders.

    "live": [batches given, total batches] of each iterator; "lengths": of all data loaders.
    """
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None:
        return {}
    iterators, loaders = _kinds(module._BaseDataLoaderIter), _kinds(module.DataLoader)
    wanted = iterators | loaders
    live, lengths = [], []
    for one in _among(gc.get_objects(), wanted):
        with contextlib.suppress(Exception):  # partly constructed iterators, and loaders without a length
            if type(one) in iterators:
                live.append([one._num_yielded, len(one)])
            else:
                lengths.append(len(one))
    return {"live": live, "lengths": lengths}


def _among(objects: list[Any], wanted: set[Any]) -> list[Any]:
    """Return the objects of the wanted classes that are found within 0.3 s.

    After a second without an answer, the engine would assume that Python does not run.
    """
    found: list[Any] = []
    end = time.monotonic() + _MOMENT
    for first in range(0, len(objects), _AT_ONCE):
        found += [one for one in objects[first : first + _AT_ONCE] if type(one) in wanted]
        if time.monotonic() > end:
            break
    return found


def _kinds(base: Any) -> set[Any]:
    """Return the class and all its subclasses."""
    found = {base}
    for kind in base.__subclasses__():
        found |= _kinds(kind)
    return found
