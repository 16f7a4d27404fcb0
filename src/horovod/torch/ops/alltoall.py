"""Alltoall, in which every rank sends a different block of rows to each rank."""

from collections.abc import Sequence
from typing import Any

import torch

from horovod._core import KIND_ALLTOALL
from horovod.common.ops import Sum, check_parts, check_splits, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops.arrays import accepting
from horovod.torch.ops.tensors import code_of, output_of, plain, set_id, set_rank_and_size, submitter


def _start(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None,
    name: str | None,
    process_set: ProcessSet,
    blocking: bool = False,
) -> tuple[Any, int]:
    """Submit an alltoall. Return the engine's Work and the number of rows that this rank sends."""
    code = code_of(tensor, "alltoall", name)
    number = set_id(process_set, "alltoall")
    _, size = set_rank_and_size(process_set, "alltoall")
    # Accept 0-dimensional tensors here. The engine rejects them on every rank, with an error that names this rank.
    rows = tensor.shape[0] if tensor.dim() else 0
    counts = _check_splits(splits, rows, size, name)
    full_name = wire_name("alltoall", name) if name else ""
    pointer = tensor.data_ptr()
    work = submitter(tensor, blocking)(
        KIND_ALLTOALL, full_name, pointer, 0, tensor.shape, code, Sum, 0, 1.0, 1.0, number, counts, "", 0
    )
    return work, rows if counts is None else sum(counts)


def _check_splits(
    splits: Sequence[int] | torch.Tensor | None, rows: int, size: int, name: str | None
) -> list[int] | None:
    what = f"alltoall of tensor {name!r}" if name else "alltoall"
    if splits is None:
        check_parts(what, rows, size)
        return None
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1:
            raise ValueError(f"{what}: splits must have one dimension, got shape {tuple(splits.shape)}")
        if splits.dtype not in (torch.int32, torch.int64):
            dtype = str(splits.dtype).removeprefix("torch.")
            raise ValueError(f"{what}: splits must have dtype int32 or int64, got {dtype}")
        counts = splits.tolist()
    else:
        counts = _integers(splits, what)
    check_splits(what, counts, rows, size)
    return counts


def _integers(splits: Any, what: str) -> list[int]:
    try:
        return [count.__index__() for count in splits]
    except (TypeError, AttributeError):
        pass
    raise ValueError(f"{what}: splits must be a list of integers or a 1-D tensor of int32 or int64, got {splits!r}")


def _result(work: Any, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = work.sizes
    dtype = torch.int32 if max(sizes, default=0) < 2**31 else torch.int64
    return output_of(work, tensor.shape[1:], tensor.dtype), torch.tensor(sizes, dtype=dtype, device="cpu")


@accepting
def alltoall_async(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an alltoall, and return a handle for ``poll`` and ``synchronize``.

    Args:
        tensor (torch.Tensor): Same as in ``alltoall``. Do not change it before ``synchronize``.
        splits (Sequence[int] or torch.Tensor, optional): Rows for each rank, as in ``alltoall``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is always the pair (output, received_splits).

    Raises:
        ValueError: If ``alltoall`` would raise it.
    """
    work, _ = _start(tensor, splits, name, process_set)
    return handles.add((work,), lambda: _result(work, tensor), tensor)


@accepting
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send a block of rows to each rank, and return the received blocks concatenated in rank order.

    The operation is differentiable: gradients are sent back to the ranks that the rows came from. Rows that were not
    sent get a zero gradient.

    Args:
        tensor (torch.Tensor): Dense, contiguous tensor with at least one dimension. All dimensions except the first
            must be the same on all ranks.
        splits (Sequence[int] or torch.Tensor, optional): Number of rows for each rank of the process set; a list, or a
            1-D tensor of int32 or int64. Rows beyond their sum are not sent. Default: dimension 0 is split into equal
            parts.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        torch.Tensor or tuple[torch.Tensor, torch.Tensor]: The output, or (output, received_splits) if ``splits`` is
        given. ``received_splits`` has the number of rows received from each rank, as int32, or as int64 if a rank sends
        2^31 rows or more.

    Raises:
        ValueError: If ``splits`` does not fit, another argument is invalid, the name is already in flight, this rank is
            not in the process set, or Horovod is not initialized.
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):  # type: ignore[no-untyped-def]
        work, sent = handles.start(lambda: _start(tensor, splits, name, process_set, blocking=True), tensor)
        handles.wait(work, tensor)
        output, received = _result(work, tensor)
        ctx.arguments = (name, process_set)
        ctx.received = received
        ctx.left_behind = tensor.shape[0] - sent
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        name, process_set = ctx.arguments
        name = name and name + ".gradient"
        returned, _ = _Alltoall.apply(plain(gradient), ctx.received, name, process_set)
        if ctx.left_behind:
            returned = torch.cat([returned, returned.new_zeros((ctx.left_behind, *returned.shape[1:]))])
        return returned, None, None, None
