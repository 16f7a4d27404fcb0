"""Checks of PyTorch training for common mistakes (``horovod.common.training``).

They sample parameters and gradients in the first steps, and the first batches, and they observe steps of optimizers
that are not distributed.
"""

import contextlib
import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from horovod.common.faces import TORCH as face
from horovod.common.process_sets import ProcessSet
from horovod.common.training import training

# Numbers of steps after which parameters are compared.
_COMPARED = (2, 20, 200)
# The same for plain optimizers, whose program may average their parameters now and then.
_PLAIN = 100
# Number of first batches to compare.
_BATCHES = 3
# Maximum numbers of tensors in a sample, and of values per tensor.
_TENSORS, _VALUES = 16, 8
# Maximum number of values per tensor of a batch.
_OF_BATCH = 1024
_BROADCAST = "call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step"
_SAMPLER = (
    "give the DataLoader sampler=torch.utils.data.DistributedSampler(dataset, num_replicas=hvd.size(), "
    "rank=hvd.rank()), or let each rank read files of its own"
)
_WRAP = "use optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())"


def after_step(names: Mapping[torch.Tensor, str], of: str, process_set: ProcessSet, steps: int, alike: bool) -> None:
    """Record a step of a distributed optimizer.

    Args:
        names: Names of the optimizer's parameters.
        of: Name of the optimizer.
        process_set: Ranks that share the optimizer.
        steps: Number of steps that it has taken.
        alike: False if the program has skipped reductions, so that ranks may differ.
    """
    training.steps += 1
    if not training.watched or steps > _COMPARED[-1]:
        return
    ranks = process_set.ranks or ()
    if steps == _BATCHES and batches.digests:
        training.tell("batches", "", ranks, digests=batches.digests, remedy=_SAMPLER)
    batches.wanted = steps < _BATCHES
    if alike and steps in _COMPARED:
        trained = {name: p for p, name in names.items() if p.requires_grad}
        training.tell("weights", of, ranks, steps, values=_sample(trained), remedy=_BROADCAST)


def first_gradients(named: Iterable[tuple[str, torch.Tensor | None]], of: str, process_set: ProcessSet) -> None:
    """Record this rank's gradients before their first reduction."""
    if not training.watched:
        return
    values = _sample({name: grad for name, grad in named if grad is not None})
    if any(any(row) for row in values.values()):  # zeros carry no information
        digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        training.tell("gradients", of, process_set.ranks or (), digest=digest, remedy=_SAMPLER)


def _sample(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return a few values of some of the tensors."""
    usable = [(name, t) for name, t in tensors.items() if t.is_floating_point() and _can_be_read(t)]
    chosen = usable[:: -(-len(usable) // _TENSORS) or 1]
    return {name: _values(t, _VALUES).double().tolist() for name, t in chosen}


def _values(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """Return at most ``most`` values of a tensor, spread evenly, in host memory."""
    return tensor.detach().reshape(-1)[:: -(-tensor.numel() // most)].cpu()


def _can_be_read(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)  # other types may communicate when they are read
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_quantized)
        and tensor.numel() > 0
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


class _Batches:
    """Digests of the first batches of the loader used for training."""

    __slots__ = ("digests", "wanted")

    def __init__(self) -> None:
        self.wanted = True
        self.digests: list[str] = []

    def came(self, batch: Any) -> None:
        """Record a batch while ``wanted``.

        Keeps the latest batches, because earlier ones may come from a validation loader.
        """
        digest = hashlib.sha256()
        if training.watched and _add(digest, batch):
            self.digests = [*self.digests[1 - _BATCHES :], digest.hexdigest()]


def _add(digest: Any, value: Any) -> bool:
    """Add the numbers and strings of a batch to ``digest``. Return False if there are none."""
    if isinstance(value, torch.Tensor):
        if not _can_be_read(value):
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
    """Record a step of a plain optimizer, as long as no optimizer is distributed."""
    if hasattr(optimizer, "_hvd") or hasattr(optimizer, "_hvd_strategy") or not training.watched:
        return
    # Assume two bytes per number: programs that average by themselves may send half precision.
    steps = training.plain_step(lambda: 2 * sum(p.numel() for p in _trained(optimizer)), _WRAP)
    if steps == _PLAIN:
        ranks = range(face.require_job().size)
        values = _sample({f"{i} of {tuple(p.shape)}": p for i, p in enumerate(_trained(optimizer))})
        nothing = training.nothing_averaged()
        training.tell("plain weights", "", ranks, steps, values=values, nothing_averaged=nothing, remedy=_WRAP)


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    groups: Collection[Mapping[str, Any]] = optimizer.param_groups
    return [p for group in groups for p in group["params"] if p.requires_grad]


def watch_plain_optimizers() -> None:
    """Record the steps of all optimizers."""
    with contextlib.suppress(ImportError):  # older PyTorch has no such hook
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_plain_step)
