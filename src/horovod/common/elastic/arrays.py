"""Broadcast of NumPy arrays that needs neither a framework's operations nor pickling."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.common import dtypes, ops
from horovod.common.frontends import Frontend

Array = np.ndarray[Any, Any]

_parked: list[Array] = []  # keeps the memory of interrupted operations alive


def arrays_of(root: int, arrays: Sequence[Array], name: str, face: Frontend) -> list[Array]:
    """Broadcast the arrays of rank ``root`` to all ranks.

    Arrays are sent as bytes, so every dtype works except that of Python objects.

    Args:
        root: Rank whose arrays are sent.
        arrays: This rank's arrays; shapes and dtypes must be equal on all ranks.
        name: Prefix of the operations' names.
        face: Frontend that submits the operations.

    Returns:
        The root's arrays. On all ranks except possibly the root, they are in newly allocated memory.

    Raises:
        HorovodInternalError: If a peer is lost.
    """
    from horovod import _core

    mine = face.require_job().rank == root
    found = []
    for number, array in enumerate(arrays):
        made = np.ascontiguousarray(array).reshape(array.shape) if mine else np.empty(array.shape, array.dtype)
        found.append(made)
        if not made.nbytes:
            continue
        at, shape, called = made.ctypes.data, (made.nbytes,), f"{name}.{number}"
        try:
            face.run(
                _core.KIND_BROADCAST, called, at, at, shape, dtypes.UINT8, ops.Sum, root, 1.0, 1.0, 0, None, "", 0
            ).wait()
        except Exception:
            raise
        except BaseException:  # Ctrl-C ends the wait, but the operation is still in flight
            _parked.append(made)
            raise
    return found
