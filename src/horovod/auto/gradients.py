"""Reduce the script's gradients before the script uses them.

The module also keeps track of the script's models, optimizers and batches, broadcasts models and optimizers before the
first batch, and weights losses that are not means over the samples.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.modules import module
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

import horovod.torch as hvd
from horovod.auto.session import calling_frame, is_script, refuse, script_line, session, wrap


@dataclass(frozen=True)
class Batch:
    """Sample counts of a batch: ``total`` over all ranks, ``own`` on this rank, ``full`` per rank in a full batch."""

    total: int
    own: int
    full: int = 0

    @property
    def weight(self) -> float:
        """Fraction of the batch's samples that this rank has."""
        return self.own / self.total


class Training:
    """Models and optimizers of the script, in order of creation, and the script's position in the data.

    Attributes:
        modules: Models of the script.
        optimizers: Map from each optimizer of the script to True if its state was broadcast.
        sent: Tensors that were broadcast.
        position: Index of each parameter of an optimizer.
        reduced: Parameters whose gradient is equal on all ranks.
        versions: Versions of the gradients after the last backward pass.
        stray: Line of a backward pass outside a loop over a divided loader, or "".
        passes: Iterators of divided loaders.
        backwards: Number of backward passes.
        streaming: True while a divided IterableDataset is read.
    """

    def __init__(self) -> None:
        self.modules: WeakKeyDictionary[torch.nn.Module, None] = WeakKeyDictionary()
        self.optimizers: WeakKeyDictionary[torch.optim.Optimizer, bool] = WeakKeyDictionary()
        self.sent = WeakIdKeyDictionary()
        self.position = WeakIdKeyDictionary()
        self.reduced: set[torch.Tensor] = set()
        self.versions: dict[torch.Tensor, tuple[int, int]] = {}
        self.stray = ""
        self.passes: WeakSet[Any] = WeakSet()
        self.backwards = 0
        self.streaming = False

    def batch(self) -> Batch | None:
        """Return the current batch, or None outside a loop over a data loader that is split among ranks."""
        if session.suspended or not self.passes:
            return None
        found = {one.batch for one in self.passes if one.batch is not None}
        if len(found) > 1:
            refuse("it reads two loaders at once, whose batches differ in size", "give both loaders drop_last=True")
        return next(iter(found), None)

    def evaluating(self) -> bool:
        """Return True if gradients are disabled, or if all modules that the script trains are in evaluation mode."""
        known = [m for m in self.modules if any(p in self.position for p in m._parameters.values() if p is not None)]
        return not torch.is_grad_enabled() or (bool(known) and not any(m.training for m in known))


training = Training()


def rows(items: Any, rank: int, size: int) -> Any:
    """Return every ``size``-th item, starting at index ``rank``.

    If there is no such item, return the first one. The caller gives it weight 0.
    """
    return items[rank::size] if len(items) > rank else items[:1]


# The code below reweights losses that are not means over samples: sums, and means over tokens or weighted classes.
#
# Backward passes scale gradients by the rank's fraction of the samples. This is correct only for means over samples.

_SCALAR = {"AddBackward0", "SubBackward0", "MulBackward0", "NegBackward0", "ToCopyBackward0", "ViewBackward0"}
_MEAN, _SUM = 1, 2  # PyTorch's codes of reduction="mean" and reduction="sum" in loss functions


def _is_penalty(node: Any) -> bool:
    """Return True if the node sums the elements of a single leaf tensor, as an L2 penalty on a parameter does."""
    leaves, pending, seen = set(), [node], set()
    while pending and len(leaves) < 2:
        one = pending.pop()
        if hasattr(one, "variable"):
            leaves.add(one.variable)
        after = [inner for inner, _ in one.next_functions if inner is not None and inner not in seen]
        seen.update(after)
        pending += after
    return len(leaves) == 1 and leaves.pop().shape == node._saved_self_sym_sizes


def _reductions(roots: tuple[torch.Tensor, ...], rows: int) -> Iterator[tuple[Any, float | None, bool]]:
    """Find the sums and weighted means in the graph of a loss.

    Yields:
        The graph node, the divisor of its value (None if it has none), and True if the divisor may be a constant.
    """
    pending: list[tuple[Any, float | None]] = [(root.grad_fn, None) for root in roots]
    while pending:
        node, divisor = pending.pop()
        kind = "" if node is None else node.name()
        sizes, reduction = getattr(node, "_saved_self_sym_sizes", None), getattr(node, "_saved_reduction", None)
        inner = [one for one, _ in node.next_functions] if node is not None else []
        if kind in _SCALAR or (kind in ("SumBackward0", "MeanBackward0") and not sizes):
            pending += [(one, divisor) for one in inner]
        elif kind == "DivBackward0" and node._saved_other.numel() == 1:
            pending.append((inner[0], float(node._saved_other) * (divisor or 1)))
        elif reduction == _SUM or (kind == "SumBackward0" and sizes[0] % rows == 0 and not _is_penalty(node)):
            yield node, divisor, True
        elif (
            kind.startswith("NllLoss")
            and reduction == _MEAN
            and (node._saved_weight is not None or node._saved_target.numel() != rows)
        ):
            yield node, float(node._saved_total_weight), False


def correct(roots: tuple[torch.Tensor, ...], batch: Batch) -> list[Any]:
    """Register hooks that reweight sums and weighted means in the loss in the next backward pass. Return the hooks."""
    found = list(_reductions(roots, max(batch.own, 1)))
    divisors = torch.tensor([0 if d is None or not batch.own else d for _, d, _ in found], dtype=torch.float64)
    if any(d is not None for _, d, _ in found):
        totals = hvd.allreduce(divisors, name=f"auto.divisors.{len(found)}", op=hvd.Sum).tolist()
    hooks = []
    for i, (node, divisor, unknown) in enumerate(found):
        # A divisor below the number of samples is a constant, such as the number of accumulated batches.
        constant = divisor is None or (unknown and totals[i] < batch.total)
        factor = 1.0 if constant else divisor / totals[i]  # type: ignore[operator]
        ratio = factor * batch.total / max(batch.own, 1)
        hooks.append(node.register_prehook(lambda grads, ratio=ratio: tuple(g * ratio for g in grads)))
    return hooks


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _version(gradient: torch.Tensor | None) -> tuple[int, int]:
    return (id(gradient), 0 if gradient is None else gradient._version)


def synchronize() -> None:
    """Broadcast the models and optimizers that rank 0 has not sent yet."""
    alive = [optimizer for optimizer, sent in training.optimizers.items() if not sent]
    if not alive:
        return
    gc.collect()  # free unused models, so that all ranks broadcast the same models
    tensors = [t for m in training.modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    tensors += [p for optimizer in alive for p in _parameters(optimizer)]
    new = {id(t): t for t in tensors if t not in training.sent and not torch.nn.parameter.is_lazy(t)}
    hvd.broadcast_parameters([(f"auto.{i}", t) for i, t in enumerate(new.values())], 0)
    for optimizer in alive:
        if not isinstance(optimizer, torch.optim.LBFGS):  # LBFGS has no state to send before its first step
            hvd.broadcast_optimizer_state(optimizer, 0)
    training.sent.update(dict.fromkeys(new.values()))
    training.optimizers.update(dict.fromkeys(alive, True))
    session.log(f"broadcast {len(new)} tensors of models and the state of {len(alive)} optimizers from rank 0")


def reduce(parameters: list[torch.Tensor]) -> None:
    """Sum gradients over all ranks, unless they were already reduced since the last backward pass.

    Each backward pass has already multiplied the gradients by this rank's fraction of the batch.
    """
    pending = [p for p in dict.fromkeys(parameters) if p.requires_grad and p not in training.reduced]
    if session.suspended or not pending:
        return
    if training.stray:
        refuse("it trains outside a loop over a DataLoader", "read the batches with a DataLoader", training.stray)
    for p in pending:
        if p.grad is not None and p.grad.layout is not torch.strided:
            refuse("it has sparse gradients", "use sparse=False")
        if training.versions.get(p, _version(p.grad)) != _version(p.grad):
            refuse("it changes gradients before they are reduced", "use clip_grad_norm_ or clip_grad_value_")
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in pending]
    present = torch.tensor([float(p.grad is not None) for p in pending], device=pending[0].device)
    name = f"auto.{training.position.get(pending[0], -1)}.{len(pending)}"
    with torch.no_grad():
        hvd.grouped_allreduce_([*gradients, present], name=name, op=hvd.Sum)
    if any(p.grad is None for p in pending):
        for p, gradient, ranks in zip(pending, gradients, present.tolist(), strict=True):
            p.grad = gradient if ranks else None  # None if no rank has a gradient, as in a single process
    training.reduced.update(pending)
    session.touched["reductions"] += 1


def _backward(plain: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
    batch = training.batch()
    if batch is None:
        training.stray = training.stray if session.suspended else script_line()
        return plain(tensors, grad_tensors, *args, **kwargs)
    if training.stray and not any(p.grad is not None and bool(p.grad.any()) for p in training.position):
        training.stray = ""  # A pass outside of a data loop does no harm if its gradients were zeroed.
    roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
    given = (grad_tensors,) if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else grad_tensors
    factors = zip(roots, [*given, *[None] * (len(roots) - len(given))], strict=True)
    scaled = [torch.full_like(t, batch.weight) if g is None else g * batch.weight for t, g in factors]
    with torch.no_grad():
        # This pass adds local gradients to sums over all ranks, so divide these sums by the number of ranks first.
        for p in training.reduced:
            if p.grad is not None:
                p.grad.div_(session.size)
    training.reduced.clear()
    hooks = correct(roots, batch)
    try:
        plain(roots, scaled, *args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    training.backwards += 1
    training.versions = {p: _version(p.grad) for p in training.position}


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    if session.suspended:
        return None
    synchronize()
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        reduce(_parameters(optimizer))
        return None

    def reducing() -> Any:
        loss = closure()
        reduce(_parameters(optimizer))
        batch = training.batch()
        if not isinstance(loss, torch.Tensor) or batch is None:
            return loss
        return hvd.allreduce(loss.detach() * batch.weight, name="auto.loss", op=hvd.Sum)

    return ((args[0], reducing, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": reducing})


def _init_optimizer(plain: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    plain(self, *args, **kwargs)
    if session.suspended:
        return
    training.optimizers[self] = False
    for options in (self.defaults, *self.param_groups):
        if "lr" in options and session.lr_factor != 1:
            # Create a new tensor, because the script's tensor must not change.
            options["lr"] = options["lr"] * session.lr_factor
    rate = self.param_groups[-1].get("lr")
    session.change("optimizers", f"{type(self).__name__}: gradients are reduced before they are used, lr {rate}")


def _add_group(plain: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    plain(self, *args, **kwargs)
    for p in self.param_groups[-1]["params"]:
        training.position.setdefault(p, len(training.position))
    if self in training.optimizers:
        # Broadcast the optimizer's new parameters before the next batch.
        training.optimizers[self] = False


def _clip(plain: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    reduce(parameters := [parameters] if isinstance(parameters, torch.Tensor) else list(parameters))
    return plain(parameters, *args, **kwargs)


def _scaler(plain: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Reduce gradients before a GradScaler checks for infinities, so that all ranks skip the same steps."""
    if self.is_enabled():
        reduce(_parameters(optimizer))
    return plain(self, optimizer, *args, **kwargs)


def _batch_norm(plain: Any, self: Any, input: torch.Tensor) -> torch.Tensor:
    """Apply batch normalization with statistics over all ranks' samples."""
    batch = training.batch() if self.training else None
    if batch is None:
        return plain(self, input)
    normalized = hvd.SyncBatchNorm.forward(self, input if batch.own else input[:0])
    # If this rank has only a sample of weight 0, return its input unchanged. The statistics exclude it.
    return normalized if batch.own else torch.cat([normalized, input])


def _item(plain: Any, self: Any) -> Any:
    """Return a loss averaged over all ranks' samples, so that all ranks make the same decisions."""
    batch = training.batch() if self.grad_fn is not None and is_script(calling_frame()) else None
    if batch is None:
        return plain(self)
    return float(hvd.allreduce(self.detach().double() * batch.weight, name="auto.item", op=hvd.Sum))


def _plateau(plain: Any, self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
    values = hvd.allgather(torch.tensor([float(metrics)], dtype=torch.float64), name="auto.plateau").tolist()
    return plain(self, metrics if len(set(values)) == 1 else sum(values) / len(values), *args, **kwargs)


def install() -> None:
    """Patch PyTorch to reduce gradients before clipping, unscaling and optimizer steps."""
    for register in (
        module.register_module_parameter_registration_hook,
        module.register_module_buffer_registration_hook,
    ):
        register(lambda owner, name, value: training.modules.__setitem__(owner, None))  # type: ignore[operator]
    register_optimizer_step_pre_hook(_before_step)
    wrap(torch.optim.Optimizer, "__init__", _init_optimizer)
    wrap(torch.optim.Optimizer, "add_param_group", _add_group)
    wrap(torch.autograd, "backward", _backward)
    for name in ("item", "__float__"):
        wrap(torch.Tensor, name, _item)
    wrap(torch.nn.modules.batchnorm._BatchNorm, "forward", _batch_norm)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrap(torch.nn.utils, name, _clip)
        setattr(torch.nn.utils.clip_grad, name, getattr(torch.nn.utils, name))
    for name in ("unscale_", "step"):
        wrap(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), name, _scaler)
    wrap(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", _plateau)
