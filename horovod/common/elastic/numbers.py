"""Numbers that all ranks come to know by one operation, where an object takes two, a pickle and a seal."""

import ctypes
from collections.abc import Sequence
from typing import Any

from horovod.common import dtypes, ops
from horovod.common.faces import Face

_memory: dict[tuple[str, str, int], Any] = {}  # of operations; one that was interrupted may still be under way


def numbers_of_rank_0(numbers: Sequence[float], name: str, face: Face) -> tuple[float, ...]:
    """As many on all ranks. ``name``: of the operation, one at a time. Raises HorovodInternalError when a peer is
    lost."""
    from horovod import _core

    count = len(numbers)
    memory = _memory.setdefault((face.name, name, count), (ctypes.c_double * count)())
    memory[:] = numbers
    at, kind = ctypes.addressof(memory), _core.KIND_BROADCAST
    face.run(kind, name, at, at, (count,), dtypes.FLOAT64, ops.Sum, 0, 1.0, 1.0, 0, None, "", 0).wait()
    return tuple(memory)


def largest(value: int, name: str, face: Face) -> int:
    """Of what all ranks give, each from 0 to 255: one byte, so that asking in each step costs little. ``name``: as for
    ``numbers_of_rank_0``. Raises HorovodInternalError when a peer is lost."""
    from horovod import _core

    word = _memory.setdefault((face.name, name, 0), ctypes.c_uint8())
    word.value = value
    at, kind = ctypes.addressof(word), _core.KIND_ALLREDUCE
    face.run(kind, name, at, at, (1,), dtypes.UINT8, ops.Max, 0, 1.0, 1.0, 0, None, "", 0).wait()
    return int(word.value)
