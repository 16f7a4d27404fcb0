"""Names of grouped operations."""

import functools
import weakref
from typing import Any

import torch

from horovod.common.faces import TORCH as face
from horovod.common.ops import wire_name
from horovod.common.process_sets import ProcessSet

# Unnamed groups are numbered by kind within a process set. The count belongs to one registration of the set in one
# job: a set that is removed gives its id to other members, whose counts start at 0, but its object is never
# registered again.
_counts: "weakref.WeakKeyDictionary[ProcessSet, tuple[Any, dict[str, int]]]" = weakref.WeakKeyDictionary()


def names(operation: str, name: str | None, count: int, process_set: ProcessSet) -> tuple[str, list[str]]:
    """(group's name, names of its members): ``grouped_allreduce.x`` and ``grouped_allreduce.x_1of2``, ...

    Without ``name`` the members go without one too, so the engine sees that every step has the same operations.
    """
    if not name:
        return f"{operation}.noname.{_next(operation, process_set)}", [""] * count
    group = wire_name(operation, name)
    return group, _members(group, count)


@functools.lru_cache(256)
def _members(group: str, count: int) -> list[str]:
    return [f"{group}_{i + 1}of{count}" for i in range(count)]


def restart(process_set: ProcessSet) -> None:
    """Starts to count at 0 again; the set's ranks do so together, when none has a group under way."""
    _counts.pop(process_set, None)


def check(tensors: Any, operation: str) -> list[torch.Tensor]:
    """``tensors`` as a list. Raises ValueError for anything that is no sequence of tensors."""
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise ValueError(f"{operation}: tensors: a list of tensors is accepted, not {type(tensors).__name__}")
    return list(tensors)


def _next(operation: str, process_set: ProcessSet) -> int:
    job, counts = _counts.get(process_set, (None, {}))
    if job is not face.job:
        job, counts = face.job, {}
        _counts[process_set] = (job, counts)
    number = counts.get(operation, 0)
    counts[operation] = number + 1
    return number
