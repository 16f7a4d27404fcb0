"""Reduction of sparse (COO) tensors with two allgathers, because positions of non-zeros differ between ranks."""

from collections.abc import Callable

import torch

from horovod.common.ops import Average, Sum, op_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops.allgather import allgather_async
from horovod.torch.ops.tensors import plain, set_rank_and_size


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a sparse COO tensor, and return a function that waits for the result.

    It runs the operations ``<name>.indices`` and ``<name>.values``.

    Args:
        tensor (torch.Tensor): Sparse COO tensor of the same shape on all ranks; the number of non-zeros can differ.
        name (str, optional): Prefix of the operations' names, which match them between ranks.
        op (int): ``Average`` or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Callable[[], torch.Tensor]: Function that waits and returns the coalesced sum, or for ``Average`` the sum
        divided by the size of the process set.

    Raises:
        ValueError: The tensor is dense, or ``op`` is not supported.
    """
    what = f"sparse_allreduce of tensor {name!r}" if name else "sparse_allreduce"
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"{what}: the tensor's layout must be torch.sparse_coo, got {tensor.layout}")
    if op not in (Average, Sum):
        raise ValueError(f"{what}: op must be Average or Sum for a sparse tensor, got {op_name(op)}")
    _, size = set_rank_and_size(process_set, "sparse_allreduce")
    # Coalesce first: this makes the message smaller if positions repeat, as for embedding rows of frequent words.
    tensor = tensor.detach().coalesce()
    # Make the non-zeros dimension 0 of both tensors, because allgather concatenates along it.
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
        if exact:  # a sum of 8-bit integers would overflow before the division
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
