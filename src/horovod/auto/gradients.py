"""Reduction of gradients before they are used, and the broadcast of models and optimizers before the first batch."""

import gc
from typing import Any

import torch
from torch.nn.modules import module
from torch.optim.optimizer import register_optimizer_step_pre_hook

import horovod.torch as hvd
from horovod.auto.losses import correct
from horovod.auto.progress import training
from horovod.auto.session import calling_frame, is_script, refuse, script_line, session, wrap


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _version(gradient: torch.Tensor | None) -> tuple[int, int]:
    return (id(gradient), 0 if gradient is None else gradient._version)


def synchronize() -> None:
    """Broadcast models and optimizers that rank 0 has not sent yet."""
    alive = [optimizer for optimizer, sent in training.optimizers.items() if not sent]
    if not alive:
        return
    gc.collect()  # models that are no longer used must be gone on all ranks
    tensors = [t for m in training.modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    tensors += [p for optimizer in alive for p in _parameters(optimizer)]
    new = {id(t): t for t in tensors if t not in training.sent and not torch.nn.parameter.is_lazy(t)}
    hvd.broadcast_parameters([(f"auto.{i}", t) for i, t in enumerate(new.values())], 0)
    for optimizer in alive:
        if not isinstance(optimizer, torch.optim.LBFGS):  # which has no state to send before its first step
            hvd.broadcast_optimizer_state(optimizer, 0)
    training.sent.update(dict.fromkeys(new.values()))
    training.optimizers.update(dict.fromkeys(alive, True))
    session.say(f"broadcast {len(new)} tensors of models and the state of {len(alive)} optimizers from rank 0")


def reduce(parameters: list[torch.Tensor]) -> None:
    """Sum gradients over all ranks, unless that has happened since the last backward pass.

    Each backward pass has already multiplied them by this rank's fraction of the batch.
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
            p.grad = gradient if ranks else None  # as one process: None if no rank has a gradient
    training.reduced.update(pending)
    session.touched["reductions"] += 1


def _backward(plain: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
    batch = training.batch()
    if batch is None:
        training.stray = training.stray if session.suspended else script_line()
        return plain(tensors, grad_tensors, *args, **kwargs)
    if training.stray and not any(p.grad is not None and bool(p.grad.any()) for p in training.position):
        training.stray = ""  # the program has discarded those gradients
    roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
    given = (grad_tensors,) if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else grad_tensors
    factors = zip(roots, [*given, *[None] * (len(roots) - len(given))], strict=True)
    scaled = [torch.full_like(t, batch.weight) if g is None else g * batch.weight for t, g in factors]
    with torch.no_grad():
        for p in training.reduced:  # this pass adds a part of a sum to a whole one: make that a part as well
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
            options["lr"] = options["lr"] * session.lr_factor  # a tensor belongs to the script, so it stays
    rate = self.param_groups[-1].get("lr")
    session.change("optimizers", f"{type(self).__name__}: gradients are reduced before they are used, lr {rate}")


def _add_group(plain: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    plain(self, *args, **kwargs)
    for p in self.param_groups[-1]["params"]:
        training.position.setdefault(p, len(training.position))
    if self in training.optimizers:
        training.optimizers[self] = False  # its new parameters are broadcast before the next batch


def _clip(plain: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    reduce(parameters := [parameters] if isinstance(parameters, torch.Tensor) else list(parameters))
    return plain(parameters, *args, **kwargs)


def _scaler(plain: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Reduce before a GradScaler looks for infinities, so that all ranks skip the same steps."""
    if self.is_enabled():
        reduce(_parameters(optimizer))
    return plain(self, optimizer, *args, **kwargs)


def _batch_norm(plain: Any, self: Any, input: torch.Tensor) -> torch.Tensor:
    """Normalize with the statistics of the batch of all ranks."""
    batch = training.batch() if self.training else None
    if batch is None:
        return plain(self, input)
    normalized = hvd.SyncBatchNorm.forward(self, input if batch.own else input[:0])
    return normalized if batch.own else torch.cat([normalized, input])  # a sample of weight 0 is not in the statistics


def _item(plain: Any, self: Any) -> Any:
    """Return the mean over the samples of all ranks for a loss that the script reads, so that its decisions agree."""
    batch = training.batch() if self.grad_fn is not None and is_script(calling_frame()) else None
    if batch is None:
        return plain(self)
    return float(hvd.allreduce(self.detach().double() * batch.weight, name="auto.item", op=hvd.Sum))


def _plateau(plain: Any, self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
    values = hvd.allgather(torch.tensor([float(metrics)], dtype=torch.float64), name="auto.plateau").tolist()
    return plain(self, metrics if len(set(values)) == 1 else sum(values) / len(values), *args, **kwargs)


def install() -> None:
    """Reduce gradients before clipping, unscaling and steps."""
    for register in (
        module.register_module_parameter_registration_hook,
        module.register_module_buffer_registration_hook,
    ):
        register(lambda owner, name, value: training.modules.__setitem__(owner, None))  # type: ignore[operator]
    register_optimizer_step_pre_hook(_before_step)
    wrap(torch.optim.Optimizer, "__init__", _init_optimizer)
    wrap(torch.optim.Optimizer, "add_param_group", _add_group)
    wrap(torch.autograd, "backward", _backward)
    wrap(torch.Tensor, "item", _item)
    wrap(torch.nn.modules.batchnorm._BatchNorm, "forward", _batch_norm)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrap(torch.nn.utils, name, _clip)
        setattr(torch.nn.utils.clip_grad, name, getattr(torch.nn.utils, name))
    for name in ("unscale_", "step"):
        wrap(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), name, _scaler)
    wrap(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", _plateau)
