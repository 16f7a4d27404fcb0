"""Allgather, which concatenates the tensors of all ranks along dimension 0."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod._core import KIND_ALLGATHER, WIRE_NONE
from horovod.common.ops import Average, Sum, op_name, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops import tensors as groups
from horovod.torch.ops.allreduce import _Allreduce
from horovod.torch.ops.arrays import accepting
from horovod.torch.ops.grouped_allreduce import _GroupedAllreduce
from horovod.torch.ops.tensors import code_of, output_of, plain, set_id, set_rank_and_size, submitter


def _submit(
    tensor: torch.Tensor,
    full_name: str,
    process_set: ProcessSet,
    group: str = "",
    group_size: int = 0,
    blocking: bool = False,
) -> Any:
    code = code_of(tensor, "allgather", full_name)
    number = set_id(process_set, "allgather")
    pointer = tensor.data_ptr()
    return submitter(tensor, blocking)(
        KIND_ALLGATHER, full_name, pointer, 0, tensor.shape, code, Sum, 0, 1.0, 1.0, number, None, group, group_size
    )


def _start(tensor: torch.Tensor, name: str | None, process_set: ProcessSet, blocking: bool = False) -> Any:
    return _submit(tensor, wire_name("allgather", name) if name else "", process_set, blocking=blocking)


def _start_group(tensors: list[torch.Tensor], name: str | None, process_set: ProcessSet) -> list[Any]:
    for tensor in tensors:
        code_of(tensor, "grouped_allgather", name)
    set_id(process_set, "grouped_allgather")
    group, members = groups.group_names("grouped_allgather", name, len(tensors), process_set)
    return [_submit(t, member, process_set, group, len(tensors)) for t, member in zip(tensors, members, strict=True)]


def _result(work: Any, tensor: torch.Tensor) -> torch.Tensor:
    return output_of(work, tensor.shape[1:], tensor.dtype)


@accepting
def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start an allgather, and return a handle for ``poll`` and ``synchronize``.

    Args:
        tensor (torch.Tensor): Dense, contiguous tensor with at least one dimension. All dimensions except the first
            must be the same on all ranks. Do not change it before ``synchronize``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is the gathered tensor.

    Raises:
        ValueError: If ``allgather`` would raise it.
    """
    work = _start(tensor, name, process_set)
    return handles.add((work,), lambda: _result(work, tensor), tensor)


@accepting
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along dimension 0, in the order of ranks within the process set.

    The operation is differentiable: the gradient of ``tensor`` is this rank's slice of the output gradient, averaged
    over the ranks.

    Args:
        tensor (torch.Tensor): Dense, contiguous tensor with at least one dimension. All dimensions except the first
            must be the same on all ranks.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        torch.Tensor: New tensor of shape (total number of rows, ``*tensor.shape[1:]``).

    Raises:
        ValueError: If an argument is invalid, the name is already in flight, this rank is not in the process set, or
            Horovod is not initialized.
        HorovodInternalError: If a rank passed a 0-dimensional tensor, ranks disagree in another way, or a rank was
            lost.
    """
    return _Allgather.apply(tensor, name, process_set)


class _Allgather(torch.autograd.Function):
    """Run a differentiable allgather.

    The backward pass reduces the ranks' gradients with ``op``: ``Average`` for the public functions, and ``Sum`` if
    this allgather is itself the gradient of another operation.
    """

    @staticmethod
    def forward(ctx, tensor, name, process_set, op=Average):  # type: ignore[no-untyped-def]
        work = handles.start(lambda: _start(tensor, name, process_set, blocking=True), tensor)
        handles.wait(work, tensor)
        ctx.arguments = (name, process_set, op)
        ctx.rows = _rows_of_this_rank(work, process_set)
        return _result(work, tensor)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        name, process_set, op = ctx.arguments
        name = name and f"allgather.{name}.gradient"
        reduced = _Allreduce.apply(plain(gradient), op, name, 1.0, 1.0, process_set)
        begin, end = ctx.rows
        return reduced[begin:end], None, None, None


def _rows_of_this_rank(work: Any, process_set: ProcessSet) -> tuple[int, int]:
    rank, _ = set_rank_and_size(process_set, "allgather")
    sizes = work.sizes
    begin = sum(sizes[:rank])
    return begin, begin + sizes[rank]


@accepting
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an allgather of several tensors in a single operation, and return its handle.

    Args:
        tensors (Sequence[torch.Tensor]): Tensors, each as in ``allgather``, the same number on all ranks.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is the list of gathered tensors.

    Raises:
        ValueError: If ``allgather`` would raise it.
    """
    tensors = groups.check_list(tensors, "grouped_allgather")
    works = _start_group(tensors, name, process_set)
    return handles.add(works, lambda: [_result(w, t) for w, t in zip(works, tensors, strict=True)], tensors)


@accepting
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors from all ranks in a single operation.

    The operation is differentiable, as ``allgather`` is. The gradients are also reduced in a single operation.

    Args:
        tensors (Sequence[torch.Tensor]): Tensors, each as in ``allgather``, the same number on all ranks.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[torch.Tensor]: Gathered tensors, in the order of ``tensors``.

    Raises:
        ValueError: If ``allgather`` would raise it.
        HorovodInternalError: If ``allgather`` would raise it.
    """
    tensors = groups.check_list(tensors, "grouped_allgather")
    return list(_GroupedAllgather.apply(name, process_set, Average, *tensors)) if tensors else []


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, process_set, op, *tensors):  # type: ignore[no-untyped-def]
        works = _start_group(list(tensors), name, process_set)
        handles.wait_all(works, tensors)
        ctx.arguments = (name, process_set, op)
        ctx.rows = [_rows_of_this_rank(work, process_set) for work in works]
        return tuple(_result(work, tensor) for work, tensor in zip(works, tensors, strict=True))

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        name, process_set, op = ctx.arguments
        name = name and f"grouped_allgather.{name}.gradient"
        dense = (plain(gradient) for gradient in gradients)
        reduced = _GroupedAllreduce.apply(op, name, 1.0, 1.0, process_set, WIRE_NONE, *dense)
        return None, None, None, *(a[begin:end] for a, (begin, end) in zip(reduced, ctx.rows, strict=True))


# Reduction of sparse (COO) tensors with two allgathers, which are necessary because each rank has non-zero values at
# different positions.


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a sparse COO tensor, and return a function that waits for the result.

    The reduction consists of two allgathers, ``<name>.indices`` and ``<name>.values``.

    Args:
        tensor (torch.Tensor): Sparse COO tensor of the same shape on all ranks; the number of non-zeros can differ.
        name (str, optional): Prefix of the operations' names, which identify them on all ranks.
        op (int): ``Average`` or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Callable[[], torch.Tensor]: Function that waits and returns the coalesced sum, or for ``Average`` the sum
        divided by the size of the process set.

    Raises:
        ValueError: If the tensor is dense, or ``op`` is not supported.
    """
    what = f"sparse_allreduce of tensor {name!r}" if name else "sparse_allreduce"
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"{what}: the tensor's layout must be torch.sparse_coo, got {tensor.layout}")
    if op not in (Average, Sum):
        raise ValueError(f"{what}: op must be Average or Sum for a sparse tensor, got {op_name(op)}")
    _, size = set_rank_and_size(process_set, "sparse_allreduce")
    # Coalesce first. This shrinks the message if positions repeat, like the embedding rows of frequent words.
    tensor = tensor.detach().coalesce()
    # Put the dimension of the non-zero values first in both tensors, because allgather concatenates along dimension 0.
    indices = plain(tensor.indices().t())
    values = plain(tensor.values())
    first = allgather_async(indices, name and f"{name}.indices", process_set)
    second = allgather_async(values, name and f"{name}.values", process_set)

    def finish() -> torch.Tensor:
        try:
            all_indices = handles.synchronize(first)
        finally:
            all_values = handles.synchronize(second)
        dtype = all_values.dtype
        exact = op == Average and not (dtype.is_floating_point or dtype.is_complex)
        # Sum integers as 64-bit values, because a sum of 8-bit integers would overflow before the division.
        if exact:
            all_values = all_values.long()
        elif op == Average:
            all_values = (all_values / size).to(dtype)
        options = {"device": all_values.device, "check_invariants": False}
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape, **options).coalesce()
        if exact:
            total.values().div_(size, rounding_mode="trunc")
            total = total.to(dtype)
        return total

    return finish
