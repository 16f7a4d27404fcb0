"""How long a program waits for its data: the time within ``next()`` of a DataLoader's iterator, which has no hook for
it. So that method is wrapped once, when the first distributed optimizer is made; the loaders' results, errors and
processes stay as they are.

Not seen: loaders of other packages, an iterator that is made (its processes start then), and what the program itself
does with a batch. Batches that another thread takes out of a loader are not waited for, as far as this is concerned.
"""

import functools
import time
from typing import Any

import torch.utils.data.dataloader as loaders

from horovod.common.steps import marks


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
            return plain(self)
        finally:
            marks.waited(time.perf_counter_ns() - begin)

    kind.__next__ = __next__
