"""Tensors in the memory that the ranks of a host share, which the engine reduces in place: no rank copies its part to
where the others can read it, because they read and write it where it is.
"""

import ctypes
import weakref
from math import prod
from typing import Any

import torch

from horovod.common.faces import TORCH as face
from horovod.torch.ops.tensors import CODES

# Address and length in bytes of what is in use, by address. Few entries: one a bucket or empty_shared.
_regions: dict[int, int] = {}


def empty_shared(*size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor in shared memory, for the fastest ``allreduce_`` between ranks of one host.

    ``size``: integers, or one sequence of them, as for ``torch.empty``. ``dtype``: any that can travel (default:
    torch's default dtype). Values are zeros at first, but do not count on it: where there is no shared memory (after
    no ``init``, alone on the host, with HOROVOD_TRANSPORT=tcp) or none left, the tensor lies in ordinary memory and
    works all the same; see ``in_shared_memory``.

    An operation gains from it when the tensors of all ranks lie in shared memory. The memory is given back when the
    last tensor over it is gone, and may be used after ``shutdown``. A forked child shares it with its parent.

    Raises ValueError for a negative size and a dtype that cannot travel.
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size
    dtype = dtype or torch.get_default_dtype()
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"empty_shared: size is {shape}; accepted are integers from 0 on, or one sequence of them")
    if dtype not in CODES:
        raise ValueError(f"empty_shared: dtype is {dtype}; accepted are {', '.join(map(str, CODES))}")
    nbytes = prod(shape) * dtype.itemsize
    return shared_buffer(nbytes).view(dtype).view(shape)


def in_shared_memory(tensor: torch.Tensor) -> bool:
    """Does all of the tensor's memory lie where the other ranks of the host reach it? See ``empty_shared``."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return any(at <= begin and end <= at + nbytes for at, nbytes in _regions.items())


def shared_buffer(nbytes: int) -> torch.Tensor:
    """``nbytes`` zeroed bytes as a uint8 tensor, in shared memory if there is some, else in ordinary memory."""
    buffer = face.engine.allocate(nbytes) if face.engine is not None and nbytes else None
    if buffer is None:
        return torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
    # The array in between keeps the buffer and can be watched; the tensor's storage keeps the array.
    array = (ctypes.c_ubyte * nbytes).from_buffer(buffer)
    _regions[buffer.address] = nbytes
    weakref.finalize(array, _regions.pop, buffer.address, None).atexit = False
    return torch.frombuffer(array, dtype=torch.uint8)
