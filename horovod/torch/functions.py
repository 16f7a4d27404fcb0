"""Bringing every rank to the root's state: parameters, optimizer state, any Python object."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from horovod.common import objects
from horovod.common.faces import TORCH as face
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops.tensors import set_id
from horovod.torch.optimizer_state import broadcast_optimizer_state
from horovod.torch.state_tensors import Form, broadcast_all, check_forms, form_of

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites ``params`` on every rank of the set with the root's values.

    ``params``: a mapping such as ``model.state_dict()``, taken in the order of its keys, or any iterable of tensors
    or (name, tensor) pairs, such as ``model.parameters()`` and ``model.named_parameters()``; None entries are
    skipped. ``root_rank``: world rank.

    Tensors of every dtype travel, as do sparse ones and those whose elements share memory, if they are alike on all
    ranks. The ranks first tell each other whether all can go on.

    Raises ValueError, on every rank, naming the rank and the entry that cannot travel or differs; HorovodInternalError
    when ranks disagree in another way or one is lost.
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
            f"params is a {type(params).__name__}; accepted are a dict of tensors, and an iterable of tensors or "
            "(name, tensor) pairs"
        )
    entries = [(str(k), params[k]) for k in sorted(params)] if isinstance(params, Mapping) else list(params)
    named = []
    for index, entry in enumerate(entries):
        is_pair = isinstance(entry, tuple | list) and len(entry) == 2 and isinstance(entry[0], str)
        name, tensor = entry if is_pair else (f"parameter.{index}", entry)
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"params: {name!r} is a {type(tensor).__name__}; accepted are tensors")
        named.append((name, tensor.detach()))
    return named


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's ``obj`` on every rank of the set; the others may pass anything, None for example.

    ``name``: prefix of the two operations, ``<name>.sz`` and ``<name>.t``. See ``horovod.common.objects``.
    """
    # The type's name, which the specification has as default, would differ between the root and ranks that pass None:
    # a hang.
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face=face)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks of the set, by rank within it. Types may differ between ranks."""
    return objects.allgather_object(obj, name or "allgather_object", process_set, face=face)
