"""Tensors in memory that the ranks of a host share.

The engine reduces them in place, without first copying each rank's tensor to where other ranks can read it.
"""

import ctypes
import weakref
from math import prod
from typing import Any

import torch

from horovod.common.faces import TORCH as face
from horovod.torch.ops.tensors import CODES

# Address -> length in bytes of each region in use. There are few: one per bucket or empty_shared tensor.
_regions: dict[int, int] = {}


def empty_shared(*size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor in shared memory, which makes ``allreduce_`` between ranks of one host fastest.

    The speedup requires that the tensors of all ranks are in shared memory. Values are usually zero, but this is not
    guaranteed. If no shared memory is available, the tensor is in ordinary memory and works as well; see
    ``in_shared_memory``. This is the case before ``init``, for a rank alone on its host, with HOROVOD_TRANSPORT=tcp,
    and when shared memory is exhausted.

    The memory is released with the last tensor that uses it, and may be used after ``shutdown``. A forked child shares
    it with its parent.

    Args:
        *size (int or Sequence[int]): Shape, as for ``torch.empty``.
        dtype (torch.dtype, optional): Any dtype that the operations support. Default: torch's default dtype.

    Returns:
        torch.Tensor: Tensor of the given shape and dtype.

    Raises:
        ValueError: The size is negative, or the dtype is not supported.
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size
    dtype = dtype or torch.get_default_dtype()
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"empty_shared: size must be non-negative integers, or one sequence of them, got {shape}")
    if dtype not in CODES:
        raise ValueError(f"empty_shared: dtype must be one of {', '.join(map(str, CODES))}, got {dtype}")
    nbytes = prod(shape) * dtype.itemsize
    return shared_buffer(nbytes).view(dtype).view(shape)


def in_shared_memory(tensor: torch.Tensor) -> bool:
    """Return True if the tensor is entirely in memory that the other ranks of the host can access.

    Args:
        tensor (torch.Tensor): Any tensor; see ``empty_shared``.
    """
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return any(at <= begin and end <= at + nbytes for at, nbytes in _regions.items())


def shared_buffer(nbytes: int) -> torch.Tensor:
    """Return ``nbytes`` zero bytes as a uint8 tensor, in shared memory if available, else in ordinary memory."""
    buffer = face.engine.allocate(nbytes) if face.engine is not None and nbytes else None
    if buffer is None:
        return torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
    # The array keeps the buffer alive and supports weak references; the tensor's storage keeps the array alive.
    array = (ctypes.c_ubyte * nbytes).from_buffer(buffer)
    _regions[buffer.address] = nbytes
    weakref.finalize(array, _regions.pop, buffer.address, None).atexit = False
    return torch.frombuffer(array, dtype=torch.uint8)
