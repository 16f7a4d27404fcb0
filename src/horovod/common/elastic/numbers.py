"""Exchange of numbers between ranks in a single operation, without pickling."""

import ctypes
from collections.abc import Sequence
from typing import Any

from horovod.common import dtypes, ops
from horovod.common.frontends import Frontend

_memory: dict[tuple[str, str, int], Any] = {}  # keeps the memory of interrupted operations alive


def numbers_of_rank_0(numbers: Sequence[float], name: str, face: Frontend) -> tuple[float, ...]:
    """Return rank 0's numbers on all ranks.

    Args:
        numbers: This rank's numbers. All ranks must pass the same count.
        name: Name of the operation. Only one operation with this name can be in flight.
        face: Frontend that submits the operation.

    Raises:
        HorovodInternalError: If a peer is lost.
    """
    from horovod import _core

    count = len(numbers)
    memory = _memory.setdefault((face.name, name, count), (ctypes.c_double * count)())
    memory[:] = numbers
    at, kind = ctypes.addressof(memory), _core.KIND_BROADCAST
    face.run(kind, name, at, at, (count,), dtypes.FLOAT64, ops.Sum, 0, 1.0, 1.0, 0, None, "", 0).wait()
    return tuple(memory)


def largest(value: int, name: str, face: Frontend) -> int:
    """Return the maximum of the ranks' values, each from 0 to 255.

    Each rank sends only one byte, which is cheap enough for every step.

    Args:
        value: This rank's value.
        name: Name of the operation. Only one operation with this name can be in flight.
        face: Frontend that submits the operation.

    Raises:
        HorovodInternalError: If a peer is lost.
    """
    from horovod import _core

    word = _memory.setdefault((face.name, name, 0), ctypes.c_uint8())
    word.value = value
    at, kind = ctypes.addressof(word), _core.KIND_ALLREDUCE
    face.run(kind, name, at, at, (1,), dtypes.UINT8, ops.Max, 0, 1.0, 1.0, 0, None, "", 0).wait()
    return int(word.value)
