"""BaseDataLoader and AsyncDataLoaderMixin: loaders of batches, and such that read ahead."""

import contextlib
import logging
import time
import weakref
from collections.abc import Iterator
from typing import Any

from horovod.data.ahead import ReadAhead
from horovod.data.source import check_count

log = logging.getLogger("horovod.data")


class BaseDataLoader:
    """Iterable over batches. A subclass says where they come from, in ``_iterate``; and how many there are, in
    ``__len__``, if it knows. It may change each batch in ``_process_batch``."""

    def __len__(self) -> int:
        # TypeError: `list(loader)` asks, and goes on without.
        raise TypeError(f"{type(self).__name__} does not know how many batches it has: it has no __len__ of its own")

    def _iterate(self) -> Any:
        """The batches of one pass."""
        raise NotImplementedError(
            f"{type(self).__name__} has no _iterate of its own, which returns the batches of one pass"
        )

    def _process_batch(self, batch: Any) -> Any:
        """What the program gets in place of ``batch``; in its own thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Loops(weakref.WeakSet[ReadAhead[Any]]):
    """Those of this process: the copy of a loader, in this process or another, has none."""

    def __reduce__(self) -> Any:
        return _Loops, ()


class AsyncDataLoaderMixin:
    """Reads batches in a thread while the program computes. Stands before the loader::

        class Loader(AsyncDataLoaderMixin, PlainLoader): ...        # PlainLoader: a BaseDataLoader

        loader = Loader(async_loader_queue_size=8, path="data")     # path: of PlainLoader

    Each loop has a thread of its own, which ends with it: also when the loop is left early. What ``_iterate`` raises is
    raised in the loop, after the batches before it, with its traceback."""

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        """``async_loader_queue_size``: how many batches it reads ahead; 0: none, and no thread. ``debug_data_loader``:
        the log ``horovod.data`` tells at level info of each batch how long the program has waited for it. The rest is
        the loader's.

        Raises ValueError for a size that is no integer of at least 0.
        """
        self.async_loader_queue_size = check_count("async_loader_queue_size", async_loader_queue_size, 0)
        self.debug_data_loader = debug_data_loader
        self._reading = _Loops()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the threads, and the loops that take of them. A loop that begins later has a new one."""
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
