"""ReadAhead: an iterator that reads what comes next in a thread, while the program computes."""

import atexit
import collections
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from horovod.common.steps import marks
from horovod.data.source import check_count

T = TypeVar("T")
CLOSE_SECONDS = 10.0
"""How long the end of an iteration waits for the thread to come back from what it reads."""

log = logging.getLogger("horovod.data")
_open: "weakref.WeakSet[ReadAhead[Any]]" = weakref.WeakSet()


class _End:
    """The last thing in a pipe: why nothing comes any more."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Pipe:
    """Between one thread that reads and one that takes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: collections.deque[Any] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: Any) -> bool:
        """Waits for room, which the end needs none of. False: nobody takes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._room or isinstance(item, _End))
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def get(self) -> Any:
        """Waits for the next one. After the end, or a close: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if self._closed:
                return _End(None)
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Wakes both. What has not been taken is dropped."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def _read(make: Callable[[], Iterable[Any]], pipe: _Pipe) -> None:
    """What the thread does. It knows nothing of the ReadAhead, which so ends when nobody has it any more."""
    error = None
    try:
        iterator = iter(make())
        try:
            for item in iterator:
                if not pipe.put(item):
                    break
                del item  # its memory is the consumer's to free
        finally:
            if close := getattr(iterator, "close", None):
                close()
    except BaseException as raised:  # whatever it is, it belongs to the consumer
        error = raised
    pipe.put(_End(error))


class ReadAhead(Iterator[T], Generic[T]):
    """What an iterable gives, up to ``depth`` items ahead::

        with ReadAhead(stream) as batches:
            for batch in batches:
                step(batch)

    An error of the iterable is raised in the loop that takes the items, in its turn, with its traceback. ``close`` ends
    the thread, as do the end of the items, an error, and that nobody has the iterator any more."""

    def __init__(self, iterable: Iterable[T] | Callable[[], Iterable[T]], depth: int = 2) -> None:
        """``iterable``: or a function that returns it, called in the thread. Raises ValueError for a ``depth`` below
        1."""
        self._pipe = _Pipe(check_count("depth", depth, 1))
        # A loader may be both: with a __call__ of its own for something else.
        make = (lambda: iterable) if isinstance(iterable, Iterable) else iterable
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_read, args=(make, self._pipe), name="horovod-data", daemon=True)
        marks.data_seen = True
        self._thread.start()
        _open.add(self)

    def __next__(self) -> T:
        if os.getpid() != self._pid:
            raise RuntimeError(f"process {self._pid} reads ahead, which a process forked from it cannot use")
        item = counted(self._pipe.get)
        if not isinstance(item, _End):
            return item  # type: ignore[no-any-return]
        self.close()
        if item.error is None:
            raise StopIteration
        try:
            if isinstance(item.error, StopIteration):  # not of its end: that is told otherwise
                raise RuntimeError("the iterable raised StopIteration") from item.error
            raise item.error
        finally:
            del item  # or the error would keep its own frame

    def close(self) -> None:
        """Ends the thread. Waits for what it is reading, for 10 s; then says so in the log, and the thread ends when it
        comes back."""
        if os.getpid() != self._pid:
            return
        self._pipe.close()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                log.warning("a loader has not come back in %g s; its thread ends when it does", CLOSE_SECONDS)
        _open.discard(self)

    def __enter__(self) -> "ReadAhead[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


def counted(take: Callable[[], Any]) -> Any:
    """Its result. The time counts as one that the program waits for its data."""
    if not marks.begin_wait():
        return take()
    begin = time.perf_counter_ns()
    try:
        return take()
    finally:
        marks.waited(time.perf_counter_ns() - begin)


@atexit.register
def _close_all() -> None:
    for one in list(_open):
        one.close()
