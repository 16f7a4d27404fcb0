"""Observation of PyTorch's DataLoader: time spent waiting for data, the first batches, and ends of epochs.

DataLoader has no hook for this. So the ``__next__`` method of its iterators is wrapped once, when the first distributed
optimizer is created. The loaders' results, errors and processes stay the same.

Not observed: loaders of other packages, the creation of an iterator (which starts its processes), and the program's own
work on a batch. Batches that another thread reads from a loader do not count as waits.

An epoch counts if the optimizer has taken steps since the loader's first batch; epochs of validation loaders have none.
"""

import functools
import time
from typing import Any

import torch.utils.data.dataloader as loaders

from horovod.common.steps import marks
from horovod.common.training import training
from horovod.torch.noticing import batches
from horovod.torch.progress import epochs

_BEGUN = "_hvd_steps_at_begin"  # attribute of a loader's iterator: the number of steps at its first batch


def watch() -> None:
    """Start to measure waits for DataLoaders."""
    kind = getattr(loaders, "_BaseDataLoaderIter", None)
    plain = vars(kind).get("__next__") if kind is not None else None
    if plain is None:  # unknown PyTorch version: data waits are not measured
        return
    marks.data_seen = True
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def __next__(self: Any) -> Any:
        if not marks.begin_wait():
            return plain(self)
        begin = time.perf_counter_ns()
        try:
            batch = plain(self)
        except StopIteration:
            _end_epoch(self)
            raise
        finally:
            marks.waited(time.perf_counter_ns() - begin)
        if not hasattr(self, _BEGUN):
            setattr(self, _BEGUN, training.steps)
        if batches.wanted:
            batches.came(batch)
        return batch

    kind.__next__ = __next__


def _end_epoch(iterator: Any) -> None:
    begun = vars(iterator).pop(_BEGUN, None)
    if begun is not None and training.steps > begun:
        training.epochs = epochs.add()
        training.epoch_batches = getattr(iterator, "_num_yielded", 0)
