"""Sharding of DataLoaders: the batch of all ranks is the batch of one process with batch size ranks x batch_size."""

import collections
import itertools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import horovod.torch as hvd
from horovod.auto.session import is_script, refuse, script_line, session, wrap

_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


@dataclass(frozen=True)
class Batch:
    """Sizes of a batch: ``total`` samples on all ranks, ``own`` on this one."""

    total: int
    own: int

    @property
    def weight(self) -> float:
        """Fraction of the samples that this rank has."""
        return self.own / self.total


class Progress:
    """Batches and backward passes of this rank."""

    def __init__(self) -> None:
        self.passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self.backwards = 0
        """Number of backward passes so far."""

    def batch(self) -> Batch | None:
        """Return the current batch, or None outside a loop over a sharded loader."""
        found = {one.batch for one in self.passes if one.batch is not None}
        if len(found) > 1:
            refuse("it reads two loaders at once, whose batches differ in size", "give both loaders drop_last=True")
        return next(iter(found), None)


progress = Progress()
before_batch: list[Callable[[], None]] = []
"""Functions to call before a batch is used."""
evaluating: Callable[[], bool] = lambda: not torch.is_grad_enabled()  # noqa: E731  (gradients.py adds the models' mode)


def rows(items: Any, rank: int, size: int) -> Any:
    """Return every ``size``-th of the items from ``rank`` on, or the first one, with weight 0, if there is none."""
    return items[rank::size] if len(items) > rank else items[:1]


class Shards:
    """Batch sampler that yields this rank's part of each batch while training, and whole batches otherwise."""

    def __init__(self, plain: BatchSampler) -> None:
        self.plain = plain
        self.training: bool | None = None  # None before the first pass
        self.asked = ""  # line that asked for the length before the first pass
        self.sizes: collections.deque[Batch] = collections.deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def __iter__(self) -> Iterator[list[int]]:
        if not self.training:
            return iter(self.plain)
        self.sizes.clear()
        return self._parts()

    def _parts(self) -> Iterator[list[int]]:
        indices, most = iter(self.plain.sampler), self.plain.batch_size * session.size
        while chunk := list(itertools.islice(indices, most)):
            if len(chunk) < most and self.plain.drop_last:
                return
            own = rows(chunk, session.rank, session.size)
            self.sizes.append(Batch(len(chunk), len(own) if len(chunk) > session.rank else 0))
            yield own

    def __len__(self) -> int:
        if self.training is False:
            return len(self.plain)
        samples, most = len(self.plain.sampler), self.plain.batch_size * session.size  # type: ignore[arg-type]
        return samples // most if self.plain.drop_last else -(-samples // most)


class _Pass:
    """Iterator of a sharded loader."""

    def __init__(self, plain: Any, shards: Shards) -> None:
        self._plain, self._shards = plain, shards
        self.batch: Batch | None = None
        self._backwards = -1
        progress.passes.add(self)

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        if self._backwards == progress.backwards:
            refuse(
                "a loop over a DataLoader does not call backward() for each batch, so it seems to evaluate",
                "call model.eval() or use torch.no_grad() around the whole loop",
            )
        self._backwards = progress.backwards
        try:
            data = next(self._plain)
        except StopIteration:
            self.batch = None
            raise
        self.batch = self._shards.sizes.popleft()
        for call in before_batch:
            call()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def shards_of(loader: Any) -> Shards:
    """Return the batch sampler that replaces the loader's own one. Refuse loaders that cannot be sharded."""
    known = loader.__dict__.get("batch_sampler")
    if isinstance(known, Shards):
        return known
    if isinstance(loader.dataset, IterableDataset):
        refuse("it trains on an IterableDataset, whose samples cannot be divided", "use a map-style Dataset")
    if type(known) is not BatchSampler or type(known.sampler) not in _SAMPLERS:
        kind = type(known.sampler if type(known) is BatchSampler else known).__name__
        names = ", ".join(one.__name__ for one in _SAMPLERS)
        refuse(f"the order of {kind} is unknown", f"use batch_size and shuffle, or one of {names}")
    loader.__dict__["batch_sampler"] = shards = Shards(known)  # DataLoader forbids plain assignment
    return shards


def _iterate(plain: Any) -> Any:
    def __iter__(loader: Any) -> Any:
        if session.suspended:
            return plain(loader)
        if evaluating():
            shards = loader.__dict__.get("batch_sampler")
            if isinstance(shards, Shards):
                if shards.training is None and shards.asked:
                    refuse(
                        "it asked for the length of a DataLoader before it was known that this one evaluates",
                        "ask inside torch.no_grad() or after model.eval()",
                        shards.asked,
                    )
                shards.training = False
            return plain(loader)
        shards = shards_of(loader)
        if shards.training is None:
            text = f"DataLoader: {len(shards)} batches of {shards.plain.batch_size} samples on each rank"
            session.change("DataLoaders", text)
        shards.training = True
        sampler = shards.plain.sampler
        for generator in {id(g): g for g in (loader.generator, getattr(sampler, "generator", None)) if g}.values():
            generator.set_state(hvd.broadcast(generator.get_state(), 0, name="auto.generator"))
        torch.set_rng_state(hvd.broadcast(torch.get_rng_state(), 0, name="auto.generator"))
        return _Pass(plain(loader), shards)

    return __iter__


def _length(plain: Any) -> Any:
    def __len__(loader: Any) -> int:
        if session.suspended or isinstance(loader.dataset, IterableDataset):
            return int(plain(loader))
        shards = loader.__dict__.get("batch_sampler")
        if evaluating():
            return len(shards.plain) if isinstance(shards, Shards) else int(plain(loader))
        known = isinstance(shards, Shards) or (type(shards) is BatchSampler and type(shards.sampler) in _SAMPLERS)
        if not known:
            return int(plain(loader))
        shards = shards_of(loader)
        caller = sys._getframe(1)
        if shards.training is None and is_script(caller.f_code.co_filename):
            line = linecache.getline(caller.f_code.co_filename, caller.f_lineno).strip()
            if not line.startswith(("print(", "log")):
                shards.asked = script_line()
        return len(shards)

    return __len__


def _of_the_whole_batch(plain: Any) -> Any:
    """Draw random numbers for the batch of all ranks and return this rank's rows, as one process would have them."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        batch = progress.batch() if progress.passes and torch.is_grad_enabled() and not session.suspended else None
        shape = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
        fits = batch is not None and len(shape) > 0 and shape[0] == max(batch.own, 1)
        if not fits or not all(isinstance(n, int) for n in shape) or kwargs.get("requires_grad") or "out" in kwargs:
            return plain(*args, **kwargs)
        assert batch is not None
        return rows(plain((batch.total, *shape[1:]), **kwargs), session.rank, session.size).contiguous()

    return draw


def _like(draw: Any) -> Any:
    def make(plain: Any) -> Any:
        def like(tensor: torch.Tensor, **kwargs: Any) -> Any:
            if kwargs.keys() - {"dtype", "device"}:
                return plain(tensor, **kwargs)
            return draw(tuple(tensor.shape), **{"dtype": tensor.dtype, "device": tensor.device, **kwargs})

        return like

    return make


def install() -> None:
    """Shard the DataLoaders that training loops use, and draw noise as one process does."""
    wrap(DataLoader, "__iter__", _iterate)
    wrap(DataLoader, "__len__", _length)
    for name in ("randn", "rand"):
        wrap(torch, name, _of_the_whole_batch)
        wrap(torch, f"{name}_like", _like(getattr(torch, name)))
