"""Names of grouped operations."""

from typing import Any

import torch

from horovod.common import groups
from horovod.common.faces import TORCH as face
from horovod.common.process_sets import ProcessSet
from horovod.torch.ops.tensors import set_id


def names(operation: str, name: str | None, count: int, process_set: ProcessSet) -> tuple[str, list[str]]:
    """(group's name, names of its members), see ``horovod.common.groups``."""
    return groups.names(face, operation, name, count, 0 if name else set_id(process_set, operation))


def check(tensors: Any, operation: str) -> list[torch.Tensor]:
    """``tensors`` as a list. Raises ValueError for anything that is no sequence of tensors."""
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise ValueError(f"{operation}: tensors: a list of tensors is accepted, not {type(tensors).__name__}")
    return list(tensors)
