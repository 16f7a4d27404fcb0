"""Broadcast, which sends the root's tensor to every rank."""

from typing import Any

import torch

from horovod._core import KIND_BROADCAST
from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import Average, Sum, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import _Allreduce
from horovod.torch.ops.arrays import accepting
from horovod.torch.ops.tensors import code_of, plain, root_of, set_id, submitter


def _start(
    source: torch.Tensor,
    target: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    blocking: bool = False,
) -> Any:
    code = code_of(source, "broadcast", name)
    root = root_of(root_rank, "broadcast")
    number = set_id(process_set, "broadcast")
    full_name = wire_name("broadcast", name) if name else ""
    pointer = source.data_ptr()
    out = pointer if target is source else target.data_ptr()
    return submitter(source, blocking, target)(
        KIND_BROADCAST, full_name, pointer, out, source.shape, code, Sum, root, 1.0, 1.0, number, None, "", 0
    )


@accepting
def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast whose result is a new tensor, and return a handle for ``poll`` and ``synchronize``.

    Args:
        tensor (torch.Tensor): Same as in ``broadcast``. Do not change it before ``synchronize``.
        root_rank (int): World rank of the root.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is the root's tensor.

    Raises:
        ValueError: If ``broadcast`` would raise it.
    """
    code_of(tensor, "broadcast", name)
    output = torch.empty_like(tensor)
    work = _start(tensor, output, root_rank, name, process_set)
    return handles.add((work,), lambda: output, (tensor, output))


@accepting
def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast in place, and return a handle for ``poll`` and ``synchronize``.

    Args:
        tensor (torch.Tensor): Same as in ``broadcast``; receives the root's values. Do not read or write it
            before ``synchronize``.
        root_rank (int): World rank of the root.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is ``tensor``.

    Raises:
        ValueError: If ``broadcast`` would raise it.
    """
    work = _start(tensor, tensor, root_rank, name, process_set)
    return handles.add((work,), lambda: tensor, tensor)


@accepting
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Overwrite a tensor with the root's tensor. The operation is not differentiable.

    Args:
        tensor (torch.Tensor): Tensor to overwrite, with the same requirements as in ``broadcast``.
        root_rank (int): World rank of the root.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        torch.Tensor: ``tensor``.

    Raises:
        ValueError: If ``broadcast`` would raise it.
        HorovodInternalError: If ``broadcast`` would raise it.
    """
    work = handles.start(lambda: _start(tensor, tensor, root_rank, name, process_set, blocking=True), tensor)
    handles.wait(work, tensor)
    return tensor


@accepting
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Broadcast the root's tensor to every rank, and return it as a new tensor.

    The operation is differentiable: on the root, the gradient is the average of the ranks' output gradients; on the
    other ranks, it is zero.

    Args:
        tensor (torch.Tensor): Dense, contiguous tensor. Shape and dtype must be the same on all ranks.
        root_rank (int): World rank of the root, which must be in ``process_set``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        torch.Tensor: New tensor with the root's values.

    Raises:
        ValueError: If an argument is invalid, the root is not in the process set, the name is already in flight, this
            rank is not in the process set, or Horovod is not initialized.
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):  # type: ignore[no-untyped-def]
        ctx.arguments = (root_rank, name, process_set)
        code_of(tensor, "broadcast", name)
        output = torch.empty_like(tensor)
        tensors = (tensor, output)
        work = handles.start(lambda: _start(*tensors, root_rank, name, process_set, blocking=True), tensors)
        handles.wait(work, tensors)
        return output

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        root_rank, name, process_set = ctx.arguments
        name = name and f"broadcast.{name}.gradient"
        averaged = _Allreduce.apply(plain(gradient), Average, name, 1.0, 1.0, process_set)
        # Only the root's input affects the output, so the gradients of other ranks are zero. Derive these zeros from
        # `averaged`, so that every rank takes part in the second derivative too.
        if frontend.require_job().rank != root_rank:
            averaged = averaged.masked_fill(averaged.new_ones((), dtype=torch.bool), 0)
        return averaged, None, None, None
