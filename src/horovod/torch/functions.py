"""Broadcast of parameters, optimizer states and Python objects from a root rank."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod.common import objects
from horovod.common.frontends import TORCH as frontend
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.uneven import make_sync
from horovod.torch.ops import handles
from horovod.torch.ops.handles import join
from horovod.torch.ops.state_tensors import Form, broadcast_all, check_forms, empty_like, form_of
from horovod.torch.ops.tensors import set_id

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "sync"]


@dataclass(frozen=True)
class _TensorAt:
    """Placeholder for a tensor in the description of an optimizer's state.

    The root sends the description before the tensors.
    """

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    """Device type, without an index because each rank has its own device."""
    form: Form | None = None
    """Form of the tensor, or None for an ordinary tensor; see ``form_of``."""


@dataclass(frozen=True)
class _Parameter:
    """Placeholder for a parameter used as a key of ``optimizer.state``: its index in ``param_groups``."""

    index: int


@dataclass(frozen=True)
class _Description:
    """Description of an optimizer's state: everything except the values of its tensors."""

    # Shapes of the optimizer's parameters, by group.
    shapes: list[list[tuple[int, ...]]]
    groups: list[dict[str, Any]]
    state: dict[Any, Any]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the root's optimizer state to every rank.

    The state includes ``optimizer.state`` and the options in ``optimizer.param_groups``, such as learning rates,
    including options that are tensors. State that a rank lacks is created without taking a step, so no parameter
    changes. State that the root lacks is removed. Tensors with the root's shape, dtype and device type are overwritten
    in place; others are replaced. An optimizer with a training strategy restarts its round with the root's shared
    parameters.

    Args:
        optimizer (torch.optim.Optimizer): Optimizer, with the same parameters on all ranks.
        root_rank (int): World rank of the root.
        model (Any): Ignored; accepted for compatibility.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: If the optimizer is LBFGS, which does not keep its state by parameter; parameters differ between
            ranks; or a tensor is not supported or cannot be created on some rank. Raised on every rank.
        HorovodInternalError: If a rank was lost.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "broadcast_optimizer_state: the state of LBFGS cannot be broadcast; create a new optimizer on every rank"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    if hasattr(optimizer, "_hvd_shards"):
        raise ValueError(
            "broadcast_optimizer_state: each rank has a different part of a hvd.ShardedOptimizer; call "
            "optimizer.load_state_dict with the complete state on every rank instead"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    is_root = frontend.require_job().rank == root_rank
    tensors: list[torch.Tensor] = []
    mine: _Description | str | None = _describe_or_reason(optimizer, parameters, tensors) if is_root else None
    root_state = objects.broadcast_object(mine, root_rank, "optimizer_state", process_set, frontend=frontend)
    if isinstance(root_state, str):
        raise ValueError(f"broadcast_optimizer_state: rank {root_rank}: {root_state}")
    places = [_Place(tensor, True) for tensor in tensors]
    complaint = _difference(optimizer, root_state)
    if not is_root and not complaint:
        try:
            places = _matching(optimizer, parameters, root_state)
        except (RuntimeError, ValueError) as error:
            # Reasons include a tensor whose device this rank lacks, and too little free memory on the device.
            complaint = f"{type(error).__name__}: {error}"
    check_forms("broadcast_optimizer_state", {}, complaint, process_set, "optimizer_state.check")
    broadcast_all(((f"optimizer_state.{i}", place.tensor) for i, place in enumerate(places)), root_rank, process_set)
    if not is_root:
        _install(optimizer, parameters, root_state, places)
    strategy = getattr(optimizer, "_hvd_strategy", None)
    if strategy is not None:
        strategy.sync(root_rank, process_set)


@dataclass(frozen=True)
class _Place:
    """Tensor in this rank's optimizer state into which a tensor is received from the root."""

    tensor: torch.Tensor
    in_place: bool
    """True if ``tensor`` is an existing tensor of this rank, False if it was created to receive the values."""


def _describe_or_reason(optimizer: Any, parameters: list[Any], tensors: list[torch.Tensor]) -> _Description | str:
    try:
        return _describe(optimizer, parameters, tensors)
    except ValueError as error:
        return str(error)


def _describe(optimizer: Any, parameters: list[Any], tensors: list[torch.Tensor]) -> _Description:
    """Return a description of this rank's optimizer state, and append its tensors to ``tensors``."""
    position = {id(p): i for i, p in enumerate(parameters)}

    def strip(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            try:
                form = form_of(value)
            except ValueError as error:
                raise ValueError(f"{where} {error}") from None
            tensors.append(value)
            return _TensorAt(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type, form)
        if isinstance(value, dict):
            return {key: strip(entry, f"{where}[{key!r}]") for key, entry in value.items()}
        if type(value) in (list, tuple):
            return type(value)(strip(entry, f"{where}[{i}]") for i, entry in enumerate(value))
        return value

    groups = [
        {k: strip(v, f"param_groups[{i}][{k!r}]") for k, v in group.items() if k != "params"}
        for i, group in enumerate(optimizer.param_groups)
    ]
    entries = {}
    for key, value in optimizer.state.items():
        known = id(key) in position
        where = f"state of parameter {position[id(key)]}" if known else f"state[{key!r}]"
        entries[_Parameter(position[id(key)]) if known else key] = strip(value, where)
    return _Description(_shapes(optimizer), groups, entries)


def _shapes(optimizer: Any) -> list[list[tuple[int, ...]]]:
    return [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]


def _difference(optimizer: Any, root_state: _Description) -> str:
    """Return a message that explains how this rank's parameters differ from the root's, or "" if they do not."""
    mine = _shapes(optimizer)
    if mine == root_state.shapes:
        return ""
    return (
        f"the parameters differ: here are groups of {[len(g) for g in mine]} parameters with shapes {mine}, on the "
        f"root of {[len(g) for g in root_state.shapes]} with {root_state.shapes}"
    )


def _matching(optimizer: Any, parameters: list[Any], root_state: _Description) -> list[_Place]:
    """Choose, for each of the root's tensors in order, the tensor of this rank that receives it.

    This is the tensor with the same state key if the two tensors match, or else a new tensor.

    Returns:
        Places of this rank's tensors, in the root's order.
    """
    found: dict[int, _Place] = {}

    def visit(description: Any, own: Any, of: Sequence[torch.Tensor]) -> None:
        if isinstance(description, _TensorAt):
            fits = isinstance(own, torch.Tensor) and _fits(own, description)
            found[description.index] = _Place(own if fits else _new_tensor(description, of), fits)
        elif isinstance(description, dict):
            for key, entry in description.items():
                visit(entry, own.get(key) if isinstance(own, dict) else None, of)
        elif type(description) in (list, tuple):
            for i, entry in enumerate(description):
                visit(entry, own[i] if type(own) in (list, tuple) and i < len(own) else None, of)

    for description, group in zip(root_state.groups, optimizer.param_groups, strict=True):
        visit(description, group, group["params"])
    for key, description in root_state.state.items():
        known = isinstance(key, _Parameter)
        actual = parameters[key.index] if known else key
        visit(description, optimizer.state.get(actual), [actual] if known else parameters)
    return [found[i] for i in range(len(found))]


def _fits(own: torch.Tensor, description: _TensorAt) -> bool:
    """Return True if the root's tensor can be received in place into this rank's tensor ``own``."""
    alike = (
        tuple(own.shape) == description.shape
        and own.dtype is description.dtype
        and own.device.type == description.device
    )
    if not alike or form_of(own) != description.form:
        return False
    return description.form is not None or (own.is_contiguous() and not own.is_neg())


def _new_tensor(description: _TensorAt, of: Sequence[torch.Tensor]) -> torch.Tensor:
    device = device_beside(of, description.device)
    if description.form is not None:
        return empty_like(description.form, device)
    return torch.empty(description.shape, dtype=description.dtype, device=device)


def device_beside(parameters: Sequence[torch.Tensor], device_type: str) -> str:
    """Return the device of the first parameter on a device of type ``device_type``.

    If no parameter is on such a device, the result is ``device_type``, which means the current device of that type.
    """
    return next((str(p.device) for p in parameters if p.device.type == device_type), device_type)


def _install(optimizer: Any, parameters: list[Any], root_state: _Description, places: list[_Place]) -> None:
    """Load the received state into the optimizer, keeping tensors that were received in place."""

    def fill(description: Any, own: Any) -> Any:
        if isinstance(description, _TensorAt):
            place = places[description.index]
            return own if place.in_place else place.tensor
        if isinstance(description, dict):
            known = own if isinstance(own, dict) else {}
            return {key: fill(entry, known.get(key)) for key, entry in description.items()}
        if type(description) in (list, tuple):
            known = own if type(own) in (list, tuple) else ()
            return type(description)(
                fill(entry, known[i] if i < len(known) else None) for i, entry in enumerate(description)
            )
        return description

    for description, group in zip(root_state.groups, optimizer.param_groups, strict=True):
        group.update(fill(description, {k: v for k, v in group.items() if k != "params"}))
    entries = {}
    for key, description in root_state.state.items():
        actual = parameters[key.index] if isinstance(key, _Parameter) else key
        entries[actual] = fill(description, optimizer.state.get(actual))
    optimizer.state.clear()
    optimizer.state.update(entries)


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite ``params`` on every rank of the process set with the root's values.

    Tensors of every dtype are supported. Sparse tensors, and tensors whose elements share memory, are supported if
    their layout is the same on all ranks. All ranks check the layouts before they send data.

    Args:
        params (Mapping[str, torch.Tensor] or Iterable): A mapping such as ``model.state_dict()``, which is processed in
            the order of its keys, or an iterable of tensors or (name, tensor) pairs, such as ``model.parameters()`` or
            ``model.named_parameters()``. None entries are skipped.
        root_rank (int): World rank of the root.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: If an entry is not supported or differs between ranks. Raised on every rank. The message names the
            rank and the entry.
        HorovodInternalError: If ranks disagree in another way, or a rank was lost.
    """
    set_id(process_set, "broadcast_parameters")
    forms: dict[str, Form] = {}
    named: list[tuple[str, torch.Tensor]] = []
    complaint = ""
    try:
        named = _named(params)
        for name, tensor in named:
            form = _form(name, tensor)
            if form is not None:
                forms[name] = form
    except ValueError as error:
        complaint = str(error)
    check_forms("broadcast_parameters", forms, complaint, process_set, "broadcast_parameters.check")
    broadcast_all(named, root_rank, process_set)


def _form(name: str, tensor: torch.Tensor) -> Form | None:
    try:
        return form_of(tensor)
    except ValueError as error:
        raise ValueError(f"params: {name!r} {error}") from None


def _named(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable) or isinstance(params, str | bytes):
        raise ValueError(
            f"params must be a dict of tensors, or an iterable of tensors or (name, tensor) pairs, got a "
            f"{type(params).__name__}"
        )
    entries = [(str(k), params[k]) for k in sorted(params)] if isinstance(params, Mapping) else list(params)
    named = []
    for index, entry in enumerate(entries):
        is_pair = isinstance(entry, tuple | list) and len(entry) == 2 and isinstance(entry[0], str)
        name, tensor = entry if is_pair else (f"parameter.{index}", entry)
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"params: {name!r} must be a tensor, got a {type(tensor).__name__}")
        named.append((name, tensor.detach()))
    return named


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast a Python object from the root to all ranks of the process set.

    Args:
        obj (Any): Picklable object to send. Ignored on the other ranks, which can pass None.
        root_rank (int): World rank of the root. Default: 0.
        name (str, optional): Prefix of the names of the two operations, ``<name>.sz`` and ``<name>.t``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Any: The root's object.

    Raises:
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    # Use a fixed default name. The original Horovod uses the name of the object's type, so a job hangs if some ranks
    # pass None.
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, frontend=frontend)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gather Python objects from all ranks of the process set.

    Args:
        obj (Any): This rank's object, which must be picklable. Types can differ between ranks.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    return objects.allgather_object(obj, name or "allgather_object", process_set, frontend=frontend)


def _copy(optimizer: Any, root_rank: int) -> None:
    optimizer._hvd.reducer.weigh_from_now()
    broadcast_parameters([(name, p) for p, name in optimizer._parameter_names.items()], root_rank)
    broadcast_optimizer_state(optimizer, root_rank)


sync = make_sync(frontend, join, _copy, handles.wait)
