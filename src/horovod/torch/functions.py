"""Synchronization of parameters, optimizer state and Python objects with a root rank."""

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
    """Overwrite ``params`` on every rank of the process set with the root's values.

    Tensors of every dtype are supported, also sparse tensors and tensors whose elements share memory, if they have the
    same form on all ranks. All ranks check this before any data is sent.

    Args:
        params (Mapping[str, torch.Tensor] or Iterable): A mapping such as ``model.state_dict()``, which is processed in
            the order of its keys, or an iterable of tensors or (name, tensor) pairs, such as ``model.parameters()`` or
            ``model.named_parameters()``. None entries are skipped.
        root_rank (int): World rank of the root.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: An entry is not supported or differs between ranks. Raised on every rank; the message names the rank
            and the entry.
        HorovodInternalError: Ranks disagree in another way, or a rank was lost.
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
    """Return the root's object on every rank of the process set.

    Args:
        obj (Any): Object to send, which must support pickling. Ignored on the other ranks, which may pass None.
        root_rank (int): World rank of the root. Default: 0.
        name (str, optional): Prefix of the names of the two operations, ``<name>.sz`` and ``<name>.t``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Any: The root's object.

    Raises:
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    # The default name in the original Horovod, the type's name, would differ between the root and ranks that pass None,
    # and hang.
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face=face)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks of the process set.

    Args:
        obj (Any): Object of this rank, which must support pickling. Types may differ between ranks.
        name (str, optional): Name that matches the operation between ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    return objects.allgather_object(obj, name or "allgather_object", process_set, face=face)
