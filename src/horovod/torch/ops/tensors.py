"""Checks and conversions of tensors passed to operations, and tensors in shared memory."""

import ctypes
import operator
import weakref
from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

import torch

from horovod.common import dtypes, ops
from horovod.common.frontends import TORCH as frontend
from horovod.common.frontends import operation_on_rank
from horovod.common.ops import check_reduction as check_op_of
from horovod.common.process_sets import ProcessSet
from horovod.torch.ops import devices

# Skip dtypes that this PyTorch version lacks. Some versions lack uint16, but all have the other dtypes.
CODES: dict[torch.dtype, int] = {getattr(torch, n): c for n, c in dtypes.CODES.items() if hasattr(torch, n)}
"""Engine dtype codes by torch dtype. Operations reject other dtypes."""

BOOL = dtypes.BOOL


def code_of(tensor: torch.Tensor, operation: str, name: str | None = None) -> int:
    """Check a tensor passed to an operation.

    The tensor must be dense, contiguous, not lazily negated, and in CPU or GPU memory.

    Returns:
        The engine's code for the dtype.

    Raises:
        ValueError: If the tensor is not supported. The message names the operation, the tensor, the problem and the
            requirements.
    """
    try:
        code = CODES.get(tensor.dtype)
        dense = tensor.layout is torch.strided and tensor.is_contiguous()
        # Reject a tensor with the negative bit set (Tensor.is_neg), because its memory holds values with the opposite
        # sign.
        if code is not None and dense and not tensor.is_neg() and (tensor.is_cpu or devices.accepts(tensor)):
            return code
    except AttributeError:
        pass
    refuse(tensor, operation, name)


def refuse(tensor: Any, operation: str, name: str | None) -> NoReturn:
    """Raise an error that explains why ``code_of`` rejects the tensor."""
    what = operation_on_rank(frontend, f"{operation} of tensor {name!r}" if name else operation)
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{what}: the tensor must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{what}: the tensor must be dense, got layout {tensor.layout}; use sparse_allreduce_async for sparse "
            "tensors"
        )
    if tensor.dtype not in CODES:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{what}: the tensor's dtype must be one of {dtypes.SUPPORTED}, got {dtype}")
    if not tensor.is_cpu and not devices.accepts(tensor):
        raise ValueError(f"{what}: the tensor must be on {devices.supported()}, got device {tensor.device}")
    if tensor.is_contiguous():
        raise ValueError(
            f"{what}: the tensor must not be a view that is negated when read (its negative bit is set, as in "
            "x.conj().imag); pass tensor.resolve_neg()"
        )
    raise ValueError(
        f"{what}: the tensor must be contiguous, got shape {tuple(tensor.shape)} with strides {tensor.stride()}; "
        "pass tensor.contiguous()"
    )


def submitter(tensor: torch.Tensor, blocking: bool, *others: torch.Tensor | None) -> Any:
    """Return the function that submits an operation on ``tensor`` and ``others``.

    For CPU tensors, it is the engine's ``run`` if the caller waits immediately, else the engine's ``submit``.
    """
    if tensor.is_cpu:
        return frontend.run if blocking else frontend.submit
    return devices.sender(tensor, *others)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` if it is contiguous, else a contiguous copy.

    Gradients can have any layout, such as transposed or lazily negated views.
    """
    return tensor.contiguous().resolve_neg()


def check_reduction(
    code: int, op: int, prescale: float, postscale: float, process_set: ProcessSet, operation: str
) -> None:
    """Check that a reduction supports the dtype, the scale factors and the process set.

    Raises:
        ValueError: If the reduction or the scale factors do not support the dtype.
        NotImplementedError: If ``op`` is Adasum and the size of the set is not a power of two.
    """
    check_op_of(operation, code, op, prescale, postscale, process_set.size() or 1)


def set_id(process_set: ProcessSet, operation: str) -> int:
    """Return the id of a registered process set.

    Raises:
        ValueError: If the set is not registered. The message names the operation, the set and the rank.
    """
    if frontend.engine is None:
        frontend.require_engine()
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        rank = frontend.require_job().rank
        raise ValueError(
            f"{operation} on rank {rank}: process_set must be registered with add_process_set, got {process_set}"
        )
    return number


def root_of(root_rank: Any, operation: str) -> int:
    """Return ``root_rank`` as an int. The engine checks later that the root is in the process set.

    Raises:
        ValueError: If ``root_rank`` is not an integer.
    """
    try:
        return operator.index(root_rank)
    except TypeError:
        pass
    raise ValueError(f"{operation}: root_rank must be the world rank of a member, an int, got {root_rank!r}")


def set_rank_and_size(process_set: ProcessSet, operation: str) -> tuple[int, int]:
    """Return this rank's index in the process set, and the size of the set.

    Raises:
        ValueError: If this process is not a member. The message names the operation and the rank.
    """
    set_id(process_set, operation)
    rank, size = process_set.rank(), process_set.size()
    if rank is None or size is None:
        raise ValueError(f"{operation}: rank {frontend.require_job().rank} is not in process set {process_set}")
    return rank, size


def output_of(work: Any, tail: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the output tensor of shape ``(sum(work.sizes), *tail)``.

    On the CPU, the tensor shares the memory that the engine has allocated.
    """
    if isinstance(work, devices.DeviceWork):
        return work.output(tail, dtype)
    shape = (sum(work.sizes), *tail)
    buffer = work.output
    # torch.frombuffer rejects empty buffers, so create an empty tensor.
    if buffer is None or buffer.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def group_names(operation: str, name: str | None, count: int, process_set: ProcessSet) -> tuple[str, list[str]]:
    """Return the name of a group and the names of its operations.

    See ``horovod.common.ops``.
    """
    return ops.grouped_names(frontend, operation, name, count, 0 if name else set_id(process_set, operation))


def check_list(tensors: Any, operation: str) -> list[torch.Tensor]:
    """Return ``tensors`` as a list.

    Raises:
        ValueError: If ``tensors`` is not a sequence of tensors.
    """
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise ValueError(f"{operation}: tensors must be a list of tensors, got {type(tensors).__name__}")
    return list(tensors)


# Length in bytes of each shared memory region in use, keyed by address. A region holds one bucket or one tensor from
# empty_shared. The engine reduces tensors in these regions in place, because other ranks can read them directly.
_regions: dict[int, int] = {}


def empty_shared(*size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return an uninitialized tensor in shared memory, for which ``allreduce_`` is fastest.

    The speedup requires that the tensors of all ranks of a host are in shared memory. If no shared memory is available,
    the tensor is in ordinary memory and can be used in the same way. This happens before ``init``, for a rank alone on
    its host, with HOROVOD_TRANSPORT=tcp, and when shared memory is exhausted.

    The memory is released with the last tensor that uses it. It remains usable after ``shutdown``. A forked child
    shares it with its parent.

    Args:
        *size (int or Sequence[int]): Shape, as in ``torch.empty``.
        dtype (torch.dtype, optional): Any dtype that the operations support. Default: torch's default dtype.

    Returns:
        torch.Tensor: Tensor of the given shape and dtype.

    Raises:
        ValueError: If the size is negative, or the dtype is not supported.
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
    """Return True if the tensor is in memory that other ranks on this host can access.

    Args:
        tensor (torch.Tensor): Any tensor; see ``empty_shared``.
    """
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return any(at <= begin and end <= at + nbytes for at, nbytes in _regions.items())


def shared_buffer(nbytes: int) -> torch.Tensor:
    """Return ``nbytes`` zero bytes as a uint8 tensor, in shared memory if possible."""
    buffer = frontend.engine.allocate(nbytes) if frontend.engine is not None and nbytes else None
    if buffer is None:
        return torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
    # Wrap the buffer in an array, which supports weak references. The tensor's storage keeps the array alive, and the
    # array keeps the buffer alive.
    array = (ctypes.c_ubyte * nbytes).from_buffer(buffer)
    _regions[buffer.address] = nbytes
    weakref.finalize(array, _regions.pop, buffer.address, None).atexit = False
    return torch.frombuffer(array, dtype=torch.uint8)
