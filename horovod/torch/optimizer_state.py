"""broadcast_optimizer_state: the root's optimizer state on every rank."""

from dataclasses import dataclass
from typing import Any

import torch

from horovod.common import objects
from horovod.common.faces import TORCH as face
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops.broadcast import broadcast_async_
from horovod.torch.ops.tensors import plain


@dataclass(frozen=True)
class _TensorAt:
    """Stands for a tensor in the description that the root sends first."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class _Parameter:
    """Stands for a parameter that is a key of ``optimizer.state``: its position in the order of ``param_groups``."""

    index: int


@dataclass(frozen=True)
class _Description:
    """An optimizer without the contents of its tensors."""

    shapes: list[list[tuple[int, ...]]]  # of the parameters, by group
    groups: list[dict[str, Any]]
    state: dict[Any, Any]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the root's ``optimizer.state`` and the options in ``optimizer.param_groups`` (learning rates,
    also as tensors, ...).

    State that a rank does not have is created there, without a step and so without a change of any parameter; state
    that the root does not have is removed. Tensors that fit are overwritten in place, others replaced. ``root_rank``:
    world rank. ``model``: not needed, accepted for old scripts.

    Raises ValueError, on every rank, for LBFGS (whose state is not kept by parameter) and when the ranks' parameters
    differ; HorovodInternalError when a peer is lost.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "broadcast_optimizer_state: the state of LBFGS cannot be broadcast; create it anew on every rank"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer is a {type(optimizer).__name__}; accepted is a torch.optim.Optimizer")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    is_root = face.require_job().rank == root_rank
    tensors: list[torch.Tensor] = []
    mine = _describe(optimizer, parameters, tensors) if is_root else None
    theirs = objects.broadcast_object(mine, root_rank, "optimizer_state", process_set, face=face)
    _agree(optimizer, theirs, process_set)
    # The copies matter where a tensor is not contiguous; they are no more than references elsewhere.
    received = [plain(t.detach()) for t in tensors] if is_root else _matching(optimizer, parameters, theirs)
    _broadcast_all(received, root_rank, process_set)
    if not is_root:
        _install(optimizer, parameters, theirs, received)


def _describe(optimizer: Any, parameters: list[Any], tensors: list[torch.Tensor]) -> _Description:
    """The root's description; the tensors it stands for are appended to ``tensors``."""
    position = {id(p): i for i, p in enumerate(parameters)}

    def strip(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _TensorAt(len(tensors) - 1, tuple(value.shape), value.dtype, str(value.device))
        if isinstance(value, dict):
            return {key: strip(entry) for key, entry in value.items()}
        if type(value) in (list, tuple):
            return type(value)(strip(entry) for entry in value)
        return value

    groups = [{k: strip(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    entries = {
        _Parameter(position[id(key)]) if id(key) in position else key: strip(value)
        for key, value in optimizer.state.items()
    }
    return _Description(_shapes(optimizer), groups, entries)


def _shapes(optimizer: Any) -> list[list[tuple[int, ...]]]:
    return [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]


def _agree(optimizer: Any, theirs: _Description, process_set: ProcessSet) -> None:
    """Raises on every rank when the parameters of any rank differ from the root's, so that none is left waiting."""
    mine = _shapes(optimizer)
    complaint = None
    if mine != theirs.shapes:
        complaint = (
            f"rank {face.require_job().rank} has groups of {[len(g) for g in mine]} parameters with shapes {mine}, "
            f"the root of {[len(g) for g in theirs.shapes]} with {theirs.shapes}"
        )
    complaints = [c for c in objects.allgather_object(complaint, "optimizer_state.check", process_set, face=face) if c]
    if complaints:
        raise ValueError("broadcast_optimizer_state: the ranks' parameters differ: " + "; ".join(complaints)[:2000])


def _matching(optimizer: Any, parameters: list[Any], theirs: _Description) -> list[torch.Tensor]:
    """For each of the root's tensors the one to receive it: this rank's own in the same place if it fits, else a new
    one."""
    found: dict[int, torch.Tensor] = {}

    def visit(description: Any, own: Any) -> None:
        if isinstance(description, _TensorAt):
            fits = (
                isinstance(own, torch.Tensor)
                and tuple(own.shape) == description.shape
                and own.dtype is description.dtype
                and str(own.device) == description.device
                and own.is_contiguous()
                and not own.is_neg()
            )
            found[description.index] = (
                own.detach()
                if fits
                else torch.empty(description.shape, dtype=description.dtype, device=description.device)
            )
        elif isinstance(description, dict):
            for key, entry in description.items():
                visit(entry, own.get(key) if isinstance(own, dict) else None)
        elif type(description) in (list, tuple):
            for i, entry in enumerate(description):
                visit(entry, own[i] if type(own) in (list, tuple) and i < len(own) else None)

    for description, group in zip(theirs.groups, optimizer.param_groups, strict=True):
        visit(description, group)
    for key, description in theirs.state.items():
        visit(description, optimizer.state.get(parameters[key.index] if isinstance(key, _Parameter) else key))
    return [found[i] for i in range(len(found))]


def _broadcast_all(tensors: list[torch.Tensor], root_rank: int, process_set: ProcessSet) -> None:
    issued: list[int] = []
    try:
        for i, tensor in enumerate(tensors):
            issued.append(broadcast_async_(tensor, root_rank, f"optimizer_state.{i}", process_set))
    finally:
        handles.synchronize_all(issued)


def _install(optimizer: Any, parameters: list[Any], theirs: _Description, received: list[torch.Tensor]) -> None:
    """Puts what arrived in its place. Tensors that were received in place keep their identity."""

    def fill(description: Any, own: Any) -> Any:
        if isinstance(description, _TensorAt):
            tensor = received[description.index]
            same = isinstance(own, torch.Tensor) and own.data_ptr() == tensor.data_ptr() and own.shape == tensor.shape
            return own if same else tensor
        if isinstance(description, dict):
            known = own if isinstance(own, dict) else {}
            return {key: fill(entry, known.get(key)) for key, entry in description.items()}
        if type(description) in (list, tuple):
            known = own if type(own) in (list, tuple) else ()
            return type(description)(
                fill(entry, known[i] if i < len(known) else None) for i, entry in enumerate(description)
            )
        return description

    for description, group in zip(theirs.groups, optimizer.param_groups, strict=True):
        group.update(fill(description, {k: v for k, v in group.items() if k != "params"}))
    entries = {}
    for key, description in theirs.state.items():
        actual = parameters[key.index] if isinstance(key, _Parameter) else key
        entries[actual] = fill(description, optimizer.state.get(actual))
    optimizer.state.clear()
    optimizer.state.update(entries)
