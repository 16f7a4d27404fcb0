"""BaseDataLoader and AsyncDataLoaderMixin: loaders of batches, with and without reading ahead."""

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
    """Base class of iterables over batches.

    A subclass provides the batches in ``_iterate`` and, if known, their number in ``__len__``. It may change each batch
    in ``_process_batch``.
    """

    def __len__(self) -> int:
        # TypeError, because `list(loader)` calls this and continues without a length.
        raise TypeError(f"{type(self).__name__} must define __len__, which returns the number of batches")

    def _iterate(self) -> Any:
        """Return the batches of one pass."""
        raise NotImplementedError(f"{type(self).__name__} must define _iterate, which returns the batches of one pass")

    def _process_batch(self, batch: Any) -> Any:
        """Return the batch that the program gets instead of ``batch``; called in the program's thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Loops(weakref.WeakSet[ReadAhead[Any]]):
    """Readers of this process; the copy of a loader has none."""

    def __reduce__(self) -> Any:
        return _Loops, ()


class AsyncDataLoaderMixin:
    """Mixin that reads batches in a thread while the program computes.

    Put it before the loader class::

        class Loader(AsyncDataLoaderMixin, PlainLoader): ...        # PlainLoader: a BaseDataLoader

        loader = Loader(async_loader_queue_size=8, path="data")     # path: argument of PlainLoader

    Each loop has its own thread, which ends with it, even if the loop is left early. An error in ``_iterate`` is raised
    in the loop, after the batches before it, with its traceback.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        """Create a loader that reads ahead.

        Args:
            async_loader_queue_size: Number of batches to read ahead; 0: no thread.
            debug_data_loader: If True, log to ``horovod.data`` at level INFO how long the program waited for each
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
        """End the threads and the loops that use them. A later loop starts a new thread."""
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
