"""Names of grouped operations."""

from typing import Any

import torch

from horovod import _core
from horovod.common.faces import TORCH as face
from horovod.common.ops import group_names
from horovod.common.process_sets import ProcessSet
from horovod.torch.ops.tensors import set_id

_KINDS = {
    "grouped_allreduce": _core.KIND_ALLREDUCE,
    "grouped_allgather": _core.KIND_ALLGATHER,
    "grouped_reducescatter": _core.KIND_REDUCESCATTER,
}


def names(operation: str, name: str | None, count: int, process_set: ProcessSet) -> tuple[str, list[str]]:
    """(group's name, names of its members): ``grouped_allreduce.x`` and ``grouped_allreduce.x_1of2``, ...

    Without ``name`` the members go without one too, so the engine sees that every step has the same operations.
    """
    if not name:
        number = set_id(process_set, operation)
        return face.require_engine().name_group(_KINDS[operation], number, face.number), [""] * count
    return group_names(operation, name, count)


def check(tensors: Any, operation: str) -> list[torch.Tensor]:
    """``tensors`` as a list. Raises ValueError for anything that is no sequence of tensors."""
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise ValueError(f"{operation}: tensors: a list of tensors is accepted, not {type(tensors).__name__}")
    return list(tensors)
