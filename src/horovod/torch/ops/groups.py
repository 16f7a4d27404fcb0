"""Names and argument checks of grouped operations."""

from typing import Any

import torch

from horovod.common import groups
from horovod.common.faces import TORCH as face
from horovod.common.process_sets import ProcessSet
from horovod.torch.ops.tensors import set_id


def names(operation: str, name: str | None, count: int, process_set: ProcessSet) -> tuple[str, list[str]]:
    """Return (the group's name, the members' names); see ``horovod.common.groups``."""
    return groups.names(face, operation, name, count, 0 if name else set_id(process_set, operation))


def check(tensors: Any, operation: str) -> list[torch.Tensor]:
    """Return ``tensors`` as a list.

    Raises:
        ValueError: ``tensors`` is not a sequence of tensors.
    """
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise ValueError(f"{operation}: tensors must be a list of tensors, got {type(tensors).__name__}")
    return list(tensors)
