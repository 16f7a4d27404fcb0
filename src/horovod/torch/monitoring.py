"""Monitoring of training programs: progress, common mistakes, data waits, and differences between ranks.

``Count`` and ``Progress`` are counters that ranks compare in every round (agreement.py). Checks for common mistakes
(``horovod.common.training_loop.observations``) sample gradients and batches in the first steps, and parameters also
later. They observe steps of optimizers that are not distributed. Neither the program nor a device waits for them.

DataLoader has no hook for waits, first batches and ends of epochs. So the ``__next__`` method of its iterators is
wrapped once, when the first distributed optimizer is created. The loaders' results, errors and processes stay the same.
Loaders of other packages, the creation of an iterator (which starts its processes), and the program's own work on a
batch are not observed. Batches that another thread reads from a loader do not count as waits. The end of a loader
counts as an epoch only if the optimizer has taken steps since the loader's first batch, which excludes validation.
"""

import contextlib
import ctypes
import functools
import hashlib
import struct
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.utils.data.dataloader as loaders
from torch.nn.modules.batchnorm import SyncBatchNorm as TorchSyncBatchNorm
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from horovod.common import in_sync
from horovod.common.frontends import TORCH as frontend
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.observations import check_launch, training
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import current
from horovod.torch.ops import handles
from horovod.torch.ops.tensors import plain
from horovod.torch.reducer import agreement
from horovod.torch.sync_batch_norm import SyncBatchNorm

strategies: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Training strategies (``horovod.strategies``) in use, with which parameters can differ between ranks."""


class Count:
    """Counter that has the same value on all ranks that run the same steps.

    The counter restarts with each job, because a job can have new ranks. It also restarts with each ``hvd.join()``,
    because ranks join after different numbers of steps.
    """

    def __init__(self) -> None:
        self._job: Any = frontend.job
        self._joins = handles.joins
        self._failures = 0
        self._number = 0

    def now(self) -> int:
        """Return the current value of the counter."""
        if self._job is not frontend.job or self._joins != handles.joins:
            self._job, self._joins = frontend.job, handles.joins
            self._number = 0
        return self._number

    def add(self) -> int:
        """Increment the counter and return its value."""
        self._number = self.now() + 1
        return self._number

    def restart(self) -> None:
        """Restart the counter at 0. Call this on all ranks, after a failure that every rank has detected."""
        self._failures += 1
        self._number = 0

    @property
    def era(self) -> str:
        """Identifier of the counting period, which changes whenever the counter restarts."""
        return f"{self._joins}.{self._failures}"


epochs = Count()
"""Number of completed epochs of the data loader that is used for training."""


class Progress:
    """Step counter of one optimizer, which ranks compare in each reduction round."""

    def __init__(self) -> None:
        self.steps = Count()

    def check(self, readiness: agreement.Readiness, ranks: list[int] | None) -> None:
        """Compare the training progress of all ranks, using the readiness messages of a reduction round.

        If ranks are in different epochs, rank 0 only warns.

        Raises:
            HorovodInternalError: If the result of the round would be wrong, or ranks are at different steps. The step
                count restarts, because programs may continue after the error.
        """
        try:
            agreement.check_readiness(readiness, self.steps.now())
        except Exception:
            self.steps.restart()
            raise
        # Do not warn in an hvd.sync loop, in which ranks may be in different epochs.
        differ = readiness.max_epoch != readiness.min_epoch and current.batch is None
        if differ and training.watched and not training.reported_epochs:
            training.reported_epochs = True
            training.tell("epochs", "", ranks or (), epochs=training.epochs, batches=training.epoch_batches)


# Steps after which ranks compare their parameters, in addition to every multiple of _INTERVAL.
_COMPARED = (2, 20, 200)
_INTERVAL = 1000
# Number of steps after which ranks compare the parameters of optimizers that are not distributed. It is large because
# some programs average their parameters from time to time.
_PLAIN = 100
# Number of batches at the start of training that ranks compare with each other.
_BATCHES = 3
# Maximum number of tensors in a sample, and maximum number of values per tensor.
_TENSORS, _VALUES = 16, 8
# Maximum number of values per tensor that enter the digest of a batch.
_OF_BATCH = 1024
_BROADCAST = "call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step"
_SAMPLER = (
    "give the DataLoader sampler=torch.utils.data.DistributedSampler(dataset, num_replicas=hvd.size(), "
    "rank=hvd.rank()), or let each rank read other files"
)
_WRAP = "use optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
_INIT = "Call hvd.init() first, and use optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())"


def is_compared(steps: int) -> bool:
    """Return True if ranks compare samples of their parameters after step number ``steps``."""
    return training.watched and (steps in _COMPARED or (steps % _INTERVAL == 0 and steps > _COMPARED[-1]))


def after_step(names: Mapping[torch.Tensor, str], of: str, process_set: ProcessSet, steps: int, same: bool) -> None:
    """Record a step of a distributed optimizer.

    Args:
        names: Names of the optimizer's parameters.
        of: Name that identifies the optimizer on all ranks.
        process_set: Ranks that share the optimizer.
        steps: Number of steps that the optimizer has taken.
        same: False if the program has skipped reductions, so that parameters can differ between ranks.
    """
    training.steps += 1
    if _copies:
        _send_copied()
    if not training.watched or (steps > _COMPARED[-1] and steps % _INTERVAL):
        return
    ranks = process_set.ranks or ()
    if steps == _BATCHES and batches.digests:
        training.tell("batches", "", ranks, digests=batches.digests, remedy=batches.remedy)
    batches.enabled = steps < _BATCHES
    if same and is_compared(steps):
        turn = _COMPARED.index(steps) if steps in _COMPARED else len(_COMPARED) - 1 + steps // _INTERVAL
        chosen = _choose({name: p for p, name in names.items() if p.requires_grad}, turn)
        rows = {name: _values(p, _VALUES, wait=False) for name, p in chosen}

        def send() -> None:
            values = {name: row.double().tolist() for name, row in rows.items()}
            training.tell("weights", of, ranks, steps, values=values, remedy=_BROADCAST)

        send_later(send, [p for _, p in chosen])


_copies: list[tuple[list[Any], Callable[[], None]]] = []
"""Samples that devices may still be copying to host memory: events, and a function that sends the sample."""


def send_later(send: Callable[[], None], sources: Iterable[torch.Tensor]) -> None:
    """Call ``send`` once the current CUDA streams have finished copying ``sources`` to host memory."""
    devices = {source.device for source in sources if source.is_cuda}
    _copies.append(([torch.cuda.current_stream(device).record_event() for device in devices], send))
    _send_copied()


def _send_copied() -> None:
    """Send the samples that devices have finished copying to host memory; see ``_copies``."""
    if is_capturing():
        return
    while _copies and all(event.query() for event in _copies[0][0]):
        _copies.pop(0)[1]()


def is_capturing() -> bool:
    """Return True if a CUDA graph is being captured on the current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def first_gradients(named: Iterable[tuple[str, torch.Tensor | None]], of: str, process_set: ProcessSet) -> None:
    """Take samples of this rank's gradients before their first reduction."""
    if not training.watched or current.padding:
        return
    values = _sample({name: grad for name, grad in named if grad is not None})
    # Skip a sample of zeros, which would be equal on all ranks even if their data differ.
    if any(any(row) for row in values.values()):
        digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        training.tell("gradients", of, process_set.ranks or (), digest=digest, remedy=_SAMPLER)


def _sample(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return a few values from each of at most ``_TENSORS`` tensors, keyed by name."""
    return {name: _values(t, _VALUES).double().tolist() for name, t in _choose(tensors)}


def _choose(tensors: Mapping[str, torch.Tensor], turn: int = 0) -> list[tuple[str, torch.Tensor]]:
    """Return at most ``_TENSORS`` readable tensors, different ones in each call."""
    usable = [(name, t) for name, t in tensors.items() if t.is_floating_point() and can_be_read(t)]
    stride = -(-len(usable) // _TENSORS) or 1
    return usable[turn % stride :: stride]


def _values(tensor: torch.Tensor, count: int, wait: bool = True) -> torch.Tensor:
    """Return at most ``count`` evenly spaced values of a tensor, in host memory.

    If ``wait`` is False, the values of a GPU tensor become valid only once its current stream has finished the copy.
    """
    some = tensor.detach().reshape(-1)[:: -(-tensor.numel() // count)]
    return some.to("cpu", non_blocking=some.is_cuda and not wait, copy=True)


def can_be_read(tensor: torch.Tensor) -> bool:
    """Return True if a check may read the tensor.

    The tensor must be plain and dense. GPU tensors cannot be read while a CUDA graph is being captured.
    """
    return (
        # Exclude tensor subclasses such as DTensor, because reading their values can start a collective.
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_quantized)
        and tensor.numel() > 0
        # Exclude parameters that FSDP has sharded, because ranks hold different parts of them.
        and not getattr(tensor, "_fsdp_flattened", False)
        and not (tensor.is_cuda and is_capturing())
    )


class _Batches:
    """Digests of the first batches that the training DataLoader produces."""

    __slots__ = ("digests", "enabled", "remedy", "size")

    def __init__(self) -> None:
        self.enabled = True
        self.digests: list[str] = []
        self.remedy = _SAMPLER
        self.size: int | None = None
        """Number of examples in a batch, or None if unknown."""

    def note_loader(self, iterator: Any) -> None:
        """Record a DataLoader's batch size, and the remedy to recommend if ranks load the same data."""
        source = getattr(iterator, "_index_sampler", None)
        self.size = getattr(source, "batch_size", None)
        name = type(getattr(source, "sampler", None)).__name__
        self.remedy = _SAMPLER if name.startswith(("_", "NoneType")) else f"replace its {name}: {_SAMPLER}"

    def add(self, batch: Any) -> None:
        """Record the digest of a batch.

        Only the latest batches are kept, because earlier batches can come from a validation loader.
        """
        digest = hashlib.sha256()
        if training.watched and _add(digest, batch):
            self.digests = [*self.digests[1 - _BATCHES :], digest.hexdigest()]


def _add(digest: Any, value: Any) -> bool:
    """Update ``digest`` with the numbers and strings in a batch. Return False if the batch contains none."""
    if isinstance(value, torch.Tensor):
        if not can_be_read(value):
            return False
        digest.update(repr(_values(value, _OF_BATCH).tolist()).encode())
        return True
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        added = [_add(digest, part) for part in value]
        return any(added)
    if isinstance(value, float):
        digest.update(struct.pack("d", value))
    elif isinstance(value, str | bytes | int):
        digest.update(repr(value).encode())
    else:
        return False
    return True


batches = _Batches()


def _plain_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Count a step of a plain optimizer. Distributed optimizers count their own steps."""
    if any(hasattr(optimizer, name) for name in ("_hvd", "_hvd_shards", "_hvd_strategy")):
        return
    if not training.watched:
        check_launch(_INIT)
        return
    # If torch.distributed is in use, assume that DDP or FSDP reduces the gradients.
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    # Assume two bytes per parameter, because programs that average gradients themselves might send them in half
    # precision.
    steps = training.plain_step(lambda: 2 * sum(p.numel() for p in _trained(optimizer)), _WRAP)
    if steps == _PLAIN:
        ranks = range(frontend.require_job().size)
        values = _sample({name: p for name, p in _named(optimizer) if p.requires_grad})
        nothing = training.nothing_averaged()
        what = {"values": values, "nothing_averaged": nothing, "beside": training.steps > 0, "remedy": _WRAP}
        training.tell("plain weights", type(optimizer).__name__, ranks, steps, **what)


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for _, p in _named(optimizer) if p.requires_grad]


def _named(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters, keyed by name or, if PyTorch has no names for them, by position and shape."""
    groups: Collection[Mapping[str, Any]] = optimizer.param_groups
    names = [name for group in groups for name in group.get("param_names") or [""] * len(group["params"])]
    parameters = [p for group in groups for p in group["params"]]
    pairs = enumerate(zip(names, parameters, strict=True))
    return [(name or f"{i} of {tuple(p.shape)}", p) for i, (name, p) in pairs]


def watch_plain_optimizers() -> None:
    """Start counting the steps of optimizers that are not distributed."""
    # Older versions of PyTorch lack the hook imported here. With these versions, steps are not counted.
    with contextlib.suppress(ImportError):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_plain_step)


# Attribute of an iterator that stores the number of optimizer steps at the time of its first batch.
_STEPS_AT_BEGIN = "_hvd_steps_at_begin"


def watch_data_loaders() -> None:
    """Start measuring how long the program waits for batches from DataLoaders."""
    kind = getattr(loaders, "_BaseDataLoaderIter", None)
    plain = vars(kind).get("__next__") if kind is not None else None
    # This version of PyTorch is unknown to Horovod, so do not measure how long the program waits for data.
    if plain is None:
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
        if not hasattr(self, _STEPS_AT_BEGIN):
            setattr(self, _STEPS_AT_BEGIN, training.steps)
        if batches.enabled:
            batches.add(batch)
            batches.note_loader(self)
        return batch

    kind.__next__ = __next__


def _end_epoch(iterator: Any) -> None:
    begun = vars(iterator).pop(_STEPS_AT_BEGIN, None)
    if begun is not None and training.steps > begun:
        training.epochs = epochs.add()
        training.epoch_batches = getattr(iterator, "_num_yielded", 0)


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit.

    All ranks of the process set must call this. Running statistics of normalization layers that are not synchronized
    usually differ between ranks and are skipped. Parameters that a training strategy such as ``LocalSGD`` allows to
    differ at this step are skipped too. For an optimizer with a strategy, only the options and the shared parameters
    are compared.

    Args:
        *objects: Models, optimizers, schedulers and other objects with ``state_dict()``; tensors, numbers, strings,
            None; and dicts and lists of these.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Additional entries to skip, as paths or patterns such as ``["model.head.*"]``.
        **named: More objects. Their keywords are used as names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: If values differ. Raised on all ranks. The message names the first difference, such as
            ``scheduler.last_epoch`` or ``optimizer.state[3].exp_avg``, and the ranks, and shows the values if they are
            small.
        ValueError: If an argument contains nothing that can be compared.
        HorovodInternalError: If a rank was lost.
    """
    return in_sync.check(
        lambda: in_sync.fingerprints(in_sync.named(objects, named, _name_of), _read, in_sync.check_ignore(ignore)),
        process_set,
        frontend,
    )


def check_after_step(optimizer: Any, names: Mapping[torch.Tensor, str], process_set: ProcessSet, steps: int) -> None:
    """If HOROVOD_CHECK_IN_SYNC_STEPS is set, check that ranks are in sync each time that many steps have passed.

    ``names`` maps the optimizer's parameters to their names. ``steps`` is the number of completed steps.
    """
    job = frontend.require_job()
    if job.check_steps and steps % job.check_steps == 0:
        parameters = {name: parameter for parameter, name in names.items()}
        check_in_sync(process_set=process_set, optimizer=optimizer, parameters=parameters)


def _name_of(value: Any) -> str:
    for kind, name in (
        (torch.nn.Module, "model"),
        (torch.optim.Optimizer, "optimizer"),
        ((LRScheduler, ReduceLROnPlateau), "scheduler"),
    ):
        if isinstance(value, kind):  # type: ignore[arg-type]
            return name
    return type(value).__name__


def _read(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _read_tensor(value)
    if isinstance(value, torch.nn.Module):
        return _model_state(value)
    if isinstance(value, torch.optim.Optimizer):
        strategy = getattr(value, "_hvd_strategy", None)
        state = torch.optim.Optimizer.state_dict(value) if strategy is not None else value.state_dict()
        if strategy is not None:
            return {"param_groups": state["param_groups"], "strategy": strategy.common()}
        # Put the options first, so that a difference in options is reported before one in parameters.
        return {"param_groups": state.pop("param_groups"), **state}
    return value


def _model_state(model: torch.nn.Module) -> dict[str, Any]:
    differing = {flat.data_ptr() for one in strategies if not one.in_sync for flat in one.vector.flats}
    state = dict(model.state_dict())
    if differing:
        state = {name: value for name, value in state.items() if value.data_ptr() not in differing}
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase) and not isinstance(module, SyncBatchNorm | TorchSyncBatchNorm):
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                state.pop(f"{prefix}.{name}" if prefix else name, None)
    return state


def _read_tensor(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return {"indices": tensor.indices(), "values": tensor.values()}
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.is_meta:
        return in_sync.Array(dtype, shape, b"", list)
    flat = plain(tensor.cpu().resolve_conj()).reshape(-1)
    size = flat.numel() * flat.element_size()
    data = (ctypes.c_char * size).from_address(flat.data_ptr()) if size else b""
    # Return a bound method, which keeps the tensor `flat` alive until the values are read.
    return in_sync.Array(dtype, shape, data, flat.tolist)
