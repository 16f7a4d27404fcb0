"""Reduction of sparse (COO) tensors: two allgathers, because the ranks' non-zero positions differ."""

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
    """Starts the reduction of a sparse COO tensor of equal shape on all ranks; the number of non-zeros may differ.

    Returns a function that waits and gives the coalesced sum, or for Average the sum divided by the size of the set.
    It uses the operations ``<name>.indices`` and ``<name>.values``. Raises ValueError for a dense tensor and for any
    other ``op``.
    """
    what = f"sparse_allreduce of tensor {name!r}" if name else "sparse_allreduce"
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"{what}: the layout is {tensor.layout}; accepted is torch.sparse_coo")
    if op not in (Average, Sum):
        raise ValueError(f"{what}: op is {op_name(op)}; accepted for sparse tensors are Average and Sum")
    _, size = set_rank_and_size(process_set, "sparse_allreduce")
    # Coalescing first makes the message smaller when positions repeat, as the rows of frequent words do.
    tensor = tensor.detach().coalesce()
    # Non-zeros come first in both, because allgather joins along dim 0.
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
        if exact:  # a sum of 8-bit integers wraps around before it is divided
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
