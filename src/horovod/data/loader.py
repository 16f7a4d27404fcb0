"""Batch loaders: ``BaseDataLoader``, ``AsyncDataLoaderMixin``, and ``ReadAhead``, which prefetches in a thread."""

import atexit
import collections
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from horovod.common.training_loop.steps import marks
from horovod.data.source import check_count

T = TypeVar("T")
CLOSE_SECONDS = 10.0
"""Maximum seconds to wait for the reading thread at the end of an iteration."""

_open: "weakref.WeakSet[ReadAhead[Any]]" = weakref.WeakSet()


class _End:
    """Marks the end of a pipe. Holds the error that ended the iteration, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Pipe:
    """Bounded queue between a reading thread and a consuming thread."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: collections.deque[Any] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: Any) -> bool:
        """Add an item once the pipe has room.

        The end marker is added immediately.

        Returns:
            False if the consumer has closed the pipe.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._room or isinstance(item, _End))
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def get(self) -> Any:
        """Wait for the next item, and remove it from the pipe.

        Returns:
            The item. After the last item, or once the pipe is closed, the end marker.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if self._closed:
                return _End(None)
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Close the pipe, drop the remaining items, and wake both threads."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def _read(make: Callable[[], Iterable[Any]], pipe: _Pipe) -> None:
    """Read items into the pipe, without referencing the ReadAhead, so that it can be garbage-collected."""
    error = None
    try:
        iterator = iter(make())
        try:
            for item in iterator:
                if not pipe.put(item):
                    break
                del item  # drop this thread's reference, so that the consumer can free the item's memory
        finally:
            if close := getattr(iterator, "close", None):
                close()
    except BaseException as raised:  # The consuming loop raises the error again.
        error = raised
    pipe.put(_End(error))


class ReadAhead(Iterator[T], Generic[T]):
    """Iterator over an iterable that reads up to ``depth`` items ahead.

    Example::

        with ReadAhead(stream) as batches:
            for batch in batches:
                step(batch)

    If the iterable raises an error, the consuming loop raises it, with its traceback, after all previous items. The
    thread exits on ``close``, at the end of the items, on an error, or when the iterator is garbage-collected.
    """

    def __init__(self, iterable: Iterable[T] | Callable[[], Iterable[T]], depth: int = 2) -> None:
        """Start prefetching.

        Args:
            iterable: The iterable, or a function that returns it. The function is called in the prefetching thread.
            depth: Maximum number of items to read ahead.

        Raises:
            ValueError: If ``depth`` is below 1.
        """
        self._pipe = _Pipe(check_count("depth", depth, 1))
        # Check for iterables first, because an iterable loader can also define __call__ for another purpose.
        make = (lambda: iterable) if isinstance(iterable, Iterable) else iterable
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_read, args=(make, self._pipe), name="horovod-data", daemon=True)
        marks.data_seen = True
        self._thread.start()
        _open.add(self)

    def __next__(self) -> T:
        if os.getpid() != self._pid:
            raise RuntimeError(f"a process forked from {self._pid} cannot use its reader; create one in the child")
        item = counted(self._pipe.get)
        if not isinstance(item, _End):
            return item  # type: ignore[no-any-return]
        self.close()
        if item.error is None:
            raise StopIteration
        try:
            if isinstance(item.error, StopIteration):  # StopIteration would look like the end of the items
                raise RuntimeError("the iterable raised StopIteration") from item.error
            raise item.error
        finally:
            del item  # break the reference cycle between the error's traceback and this frame

    def close(self) -> None:
        """Stop the thread, waiting up to 10 s for its current item.

        If the item takes longer, log a warning. The thread then exits once the item has been read.
        """
        if os.getpid() != self._pid:
            return
        self._pipe.close()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                log.warning("a data loader has not returned within %g s; its thread ends when it does", CLOSE_SECONDS)
        _open.discard(self)

    def __enter__(self) -> "ReadAhead[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


def counted(take: Callable[[], Any]) -> Any:
    """Call ``take``, and count its duration as time waiting for data. Return its result."""
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


log = logging.getLogger("horovod.data")


class BaseDataLoader:
    """Base class of iterables over batches.

    A subclass yields the batches in ``_iterate`` and returns their number, if known, in ``__len__``. It can change each
    batch in ``_process_batch``.
    """

    def __len__(self) -> int:
        # `list(loader)` calls this method and ignores only a TypeError.
        raise TypeError(f"{type(self).__name__} must define __len__, which returns the number of batches")

    def _iterate(self) -> Any:
        """Return an iterator over the batches of one pass over the data."""
        raise NotImplementedError(f"{type(self).__name__} must define _iterate, which returns the batches of one pass")

    def _process_batch(self, batch: Any) -> Any:
        """Transform ``batch`` before the program gets it. Called in the program's thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Loops(weakref.WeakSet[ReadAhead[Any]]):
    """Set of a loader's open ReadAheads. It is empty in copies and pickles of the loader."""

    def __reduce__(self) -> Any:
        return _Loops, ()


class AsyncDataLoaderMixin:
    """Mixin that prefetches batches in a thread while the program computes.

    List it before the loader class::

        class Loader(AsyncDataLoaderMixin, PlainLoader): ...        # PlainLoader: a BaseDataLoader

        loader = Loader(async_loader_queue_size=8, path="data")     # path: argument of PlainLoader

    Each loop over the loader has its own thread, which exits when the loop ends or is left early. If ``_iterate``
    raises an error, the loop raises it, with its traceback, after all previous batches.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        """Create a loader that reads ahead.

        Args:
            async_loader_queue_size: Number of batches to read ahead. 0 reads without a thread.
            debug_data_loader: True to log, to ``horovod.data`` at level INFO, how long the program waited for each
                batch.
            *args: Arguments of the loader class.
            **kwargs: Arguments of the loader class.

        Raises:
            ValueError: If the size is not an integer of at least 0.
        """
        self.async_loader_queue_size = check_count("async_loader_queue_size", async_loader_queue_size, 0)
        self.debug_data_loader = debug_data_loader
        self._reading = _Loops()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Stop all prefetch threads, which ends the current loops over the loader. A later loop starts a new thread."""
        for one in list(self._reading):
            one.close()

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size == 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        reading: ReadAhead[Any] = ReadAhead(self._iterate, self.async_loader_queue_size)  # type: ignore[attr-defined]
        self._reading.add(reading)
        with contextlib.closing(reading):
            for batch in self._logged(reading) if self.debug_data_loader else reading:
                yield self._process_batch(batch)  # type: ignore[attr-defined]

    def _logged(self, reading: Iterator[Any]) -> Iterator[Any]:
        name, number, begin = type(self).__name__, 0, time.perf_counter()
        for batch in reading:
            log.info("%s: waited %.3f s for batch %d", name, time.perf_counter() - begin, number)
            yield batch
            number, begin = number + 1, time.perf_counter()
        log.info("%s: %d batches", name, number)
