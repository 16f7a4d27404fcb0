"""What is seen of PyTorch's DataLoader, which has no hook for it: how long a program waits for its data, the first
batches, and where an epoch ends. So the method ``next()`` of its iterators is wrapped once, when the first distributed
optimizer is made; the loaders' results, errors and processes stay as they are.

Not seen: loaders of other packages, an iterator that is made (its processes start then), and what the program itself
does with a batch. Batches that another thread takes out of a loader are not waited for, as far as this is concerned.

An epoch counts if the optimizer has taken steps since the loader gave its first batch: loaders for validation have
epochs without steps.
"""

import functools
import time
from typing import Any

import torch.utils.data.dataloader as loaders

from horovod.common.steps import marks
from horovod.common.training import training
from horovod.torch.noticing import batches
from horovod.torch.progress import epochs

_BEGUN = "_hvd_steps_at_begin"  # of an iterator


def watch() -> None:
    """From now on these waits are counted."""
    kind = getattr(loaders, "_BaseDataLoaderIter", None)
    plain = vars(kind).get("__next__") if kind is not None else None
    if plain is None:  # another PyTorch: then data waits are not known
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
