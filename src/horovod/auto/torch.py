"""PyTorch patches that make scripts data-parallel: split DataLoaders, reduced gradients, and saving on one rank.

The batch of all ranks together equals the batch of one process with the batch size ranks x batch_size.
"""

import ast
import itertools
import linecache
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data._utils.worker import WorkerInfo

import horovod.torch as hvd
from horovod.auto import gradients
from horovod.auto.gradients import Batch, rows, synchronize, training
from horovod.auto.session import calling_frame, is_script, on_rank_0, refuse, script_code, script_line, session, wrap

_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


class Shards:
    """Batch sampler that yields this rank's part of each batch during training, and whole batches otherwise."""

    def __init__(self, plain: BatchSampler) -> None:
        self.plain = plain
        # True if the current pass over the data trains the model, or None before the first pass.
        self.training: bool | None = None
        # Line and code that called ``len`` on the loader before Horovod knew whether the next pass trains, or None.
        self.request: tuple[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def __iter__(self) -> Iterator[list[int]]:
        return self._parts() if self.training else iter(self.plain)

    def _parts(self) -> Iterator[list[int]]:
        indices, most = iter(self.plain.sampler), self.plain.batch_size * session.size
        while chunk := list(itertools.islice(indices, most)):
            if len(chunk) == most or not self.plain.drop_last:
                yield rows(chunk, session.rank, session.size)

    def __len__(self) -> int:
        if self.training is False:
            return len(self.plain)
        samples, most = len(self.plain.sampler), self.plain.batch_size * session.size  # type: ignore[arg-type]
        return samples // most if self.plain.drop_last else -(-samples // most)

    def batch(self, index: int) -> Batch:
        """Return the sample counts of one batch in a training pass."""
        most = self.plain.batch_size * session.size
        total = min(len(self.plain.sampler) - index * most, most)  # type: ignore[arg-type]
        return Batch(total, len(range(session.rank, total, session.size)), self.plain.batch_size)


class _Pass:
    """Iterator over the batches of a DataLoader that is divided among the ranks.

    It reads pairs of a batch and its sample counts.
    """

    def __init__(self, pairs: Iterator[tuple[Any, Batch]]) -> None:
        self._pairs, self._backwards = pairs, -1
        self.batch: Batch | None = None
        training.passes.add(self)

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        if self._backwards == training.backwards:
            why = "a loop over a DataLoader does not call backward() for each batch, so it seems to evaluate"
            refuse(why, "call model.eval() or use torch.no_grad() around the whole loop")
        self._backwards, self.batch = training.backwards, None
        data, self.batch = next(self._pairs)
        synchronize()
        return data


def _streamed(batches: Iterator[Any]) -> Iterator[tuple[Any, Batch]]:
    """Yield batches of an IterableDataset until all ranks finish. A rank that finishes early repeats its last batch."""
    last = None
    while True:
        training.streaming = True
        data = next(batches, None)
        training.streaming = False
        tensors = (len(t) for t in tree_leaves(data) if isinstance(t, torch.Tensor) and t.dim())
        own = 0 if data is None else next(tensors, 0) or len(data)
        total = int(hvd.allreduce(torch.tensor(own), name="auto.samples", op=hvd.Sum))
        last = last if data is None else data
        if total == 0:
            return
        if last is None:
            refuse(f"its IterableDataset has no sample for rank {session.rank}", "use fewer processes")
        yield last, Batch(total, own)


def _worker_info(plain: Any) -> Any:
    """Return this worker's index among the workers of all ranks. Datasets use the index to split their samples."""
    info = plain()
    if not training.streaming:
        return info
    own, id, seed, dataset = (info.num_workers, info.id, info.seed, info.dataset) if info else (1, 0, 0, None)
    return WorkerInfo(id=id + own * session.rank, num_workers=own * session.size, seed=seed, dataset=dataset)


def _stream(plain: Any, loader: Any) -> Any:
    codes = [getattr(one, "__code__", None) for one in (type(loader.dataset).__iter__, loader.worker_init_fn)]
    if not any(code and "get_worker_info" in code.co_names for code in codes[: 2 if loader.num_workers else 1]):
        why = "it trains on an IterableDataset that does not divide its samples among workers"
        refuse(why, "call get_worker_info() in __iter__, or use a map-style Dataset")
    if loader.num_workers and (loader.multiprocessing_context or torch.multiprocessing).get_start_method() != "fork":
        refuse("the workers of its IterableDataset are not forked", 'use multiprocessing_context="fork"')
    session.change("DataLoaders", f"DataLoader: {type(loader.dataset).__name__} is divided by get_worker_info()")
    training.streaming = True  # the DataLoader's worker processes inherit this flag when they start
    batches = plain(loader)
    training.streaming = False
    return _Pass(_streamed(batches))


def _undivide(sampler: Any) -> None:
    """Make a DistributedSampler yield the samples of all ranks, as it would in a single process."""
    if type(sampler) is DistributedSampler:
        if (sampler.num_replicas, sampler.rank) not in ((1, 0), (session.size, session.rank)):
            refuse("its DistributedSampler has other ranks than this job", "use num_replicas=1 and rank=0")
        sampler.num_replicas, sampler.rank = 1, 0
        sampler.num_samples = sampler.total_size = len(sampler.dataset)  # type: ignore[arg-type]


def shards_of(loader: Any) -> Shards:
    """Return a replacement for the loader's batch sampler. Raises an error if the loader cannot be split."""
    sampler = loader.__dict__.get("batch_sampler")
    if isinstance(sampler, Shards):
        return sampler
    if type(sampler) is not BatchSampler or type(sampler.sampler) not in _SAMPLERS:
        kind = type(sampler.sampler if type(sampler) is BatchSampler else sampler).__name__
        names = ", ".join(one.__name__ for one in _SAMPLERS)
        refuse(f"the order of {kind} is unknown", f"use batch_size and shuffle, or one of {names}")
    # Set the attribute in ``__dict__``, because DataLoader rejects an assignment.
    loader.__dict__["batch_sampler"] = shards = Shards(sampler)
    return shards


def _iterate(plain: Any, loader: Any) -> Any:
    if session.suspended:
        return plain(loader)
    _undivide(loader.sampler)
    shards, evaluating = loader.__dict__.get("batch_sampler"), training.evaluating()
    if evaluating and isinstance(shards, Shards):
        # Many scripts call ``len`` after training, in order to compute the mean loss. Refuse a call only if the
        # function that made it evaluates afterwards.
        if shards.request and (not shards.training or shards.request[1] is script_code()):
            why = "it asked for the length of a DataLoader before it was known that this one evaluates"
            refuse(why, "ask inside torch.no_grad() or after model.eval()", shards.request[0])
        shards.training, shards.request = False, None
    # Without an optimizer, the script does not train, so do not split its data.
    if evaluating or not training.optimizers:
        return plain(loader)
    if isinstance(loader.dataset, IterableDataset):
        return _stream(plain, loader)
    shards = shards_of(loader)
    if shards.training is None:
        text = f"DataLoader: {len(shards)} batches of {shards.plain.batch_size} samples on each rank"
        session.change("DataLoaders", text)
    shards.training, shards.request = True, None
    generators = (loader.generator, getattr(shards.plain.sampler, "generator", None))
    for generator in {id(g): g for g in generators if g}.values():
        generator.set_state(hvd.broadcast(generator.get_state(), 0, name="auto.generator"))
    torch.set_rng_state(hvd.broadcast(torch.get_rng_state(), 0, name="auto.generator"))
    return _Pass(zip(plain(loader), map(shards.batch, itertools.count()), strict=False))


def _is_stored(filename: str, line: int) -> bool:
    """Return False if the statement at this line discards its value, as a call to print does."""
    tree = ast.parse("".join(linecache.getlines(filename)))
    around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)]
    return not isinstance(max(around, key=lambda n: n.lineno, default=None), ast.Expr)


def _length(plain: Any, loader: Any) -> int:
    shards = loader.__dict__.get("batch_sampler")
    known = isinstance(shards, Shards) or (type(shards) is BatchSampler and type(shards.sampler) in _SAMPLERS)
    if session.suspended or not known or isinstance(loader.dataset, IterableDataset):
        return int(plain(loader))
    _undivide(loader.sampler)
    evaluating = training.evaluating()
    if evaluating and not (isinstance(shards, Shards) and shards.training):
        return len(shards.plain) if isinstance(shards, Shards) else int(plain(loader))
    shards, caller = shards_of(loader), calling_frame()
    undecided = shards.training is None or evaluating
    if undecided and is_script(caller) and _is_stored(caller.f_code.co_filename, caller.f_lineno):
        shards.request = script_line(), script_code()
    return len(shards)


def _draw(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw random numbers for the combined batch of all ranks, as a single process would do.

    Return this rank's rows.
    """
    batch = training.batch()
    bounds, last = (args[:-1], args[-1:]) if plain.__name__ == "randint" else ((), args)
    shape = kwargs.get("size", last[0] if last and isinstance(last[0], tuple | list) else last)
    if batch is None or not shape or not isinstance(shape[0], int) or {"out", "requires_grad"} & kwargs.keys():
        return plain(*args, **kwargs)
    if batch.own != batch.full == shape[0]:
        why = f"it draws noise for {batch.full} samples, but the last batch has fewer"
        refuse(why, "use the length of the batch, or drop_last=True")
    if shape[0] != max(batch.own, 1):
        return plain(*args, **kwargs)
    drawn = plain(*(args if "size" in kwargs else bounds), **{**kwargs, "size": (batch.total, *shape[1:])})
    return rows(drawn, session.rank, session.size).contiguous()


def _draw_like(plain: Any, tensor: torch.Tensor, **kwargs: Any) -> Any:
    if kwargs.keys() - {"dtype", "device"}:
        return plain(tensor, **kwargs)
    draw = getattr(torch, plain.__name__.removesuffix("_like"))
    return draw(tuple(tensor.shape), **{"dtype": tensor.dtype, "device": tensor.device, **kwargs})


def divide_loaders() -> None:
    """Patch PyTorch to split the DataLoaders of training loops, and to generate random tensors as one process does."""
    wrap(DataLoader, "__iter__", _iterate)
    wrap(DataLoader, "__len__", _length)
    wrap(torch.utils.data, "get_worker_info", _worker_info)
    for name in ("randn", "rand", "randint"):
        wrap(torch, name, _draw)
    for name in ("randn_like", "rand_like"):
        wrap(torch, name, _draw_like)


def install() -> None:
    """Patch PyTorch in this process for data-parallel training."""
    hvd.init()
    torch.manual_seed(session.seed)
    divide_loaders()
    gradients.install()
    wrap(torch, "save", _save)
    instead = "run it without --auto, or remove that line"
    wrap(torch.nn.DataParallel, "__init__", lambda *_, **__: refuse("it uses several devices in one process", instead))
    wrap(torch.distributed, "init_process_group", lambda *_, **__: refuse("it is a distributed program", instead))


def _save(plain: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(f, str) or hasattr(f, "__fspath__") or hasattr(f, "name"):
        on_rank_0(plain, obj, f, *args, **kwargs)
    else:
        plain(obj, f, *args, **kwargs)
