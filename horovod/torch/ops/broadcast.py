"""broadcast: every rank gets the root's tensor.

``tensor``: dense and contiguous, of equal shape and dtype on all ranks. ``root_rank``: the root's WORLD rank, also
within a process set; ValueError naming it when it is no member. Other errors as in ops/allreduce.py.
"""

from typing import Any

import torch

from horovod._core import KIND_BROADCAST
from horovod.common.faces import TORCH as face
from horovod.common.ops import Average, Sum, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import _Allreduce
from horovod.torch.ops.arrays import accepting
from horovod.torch.ops.tensors import code_of, plain, root_of, set_id, way


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
    return way(source, blocking, target)(
        KIND_BROADCAST, full_name, pointer, out, source.shape, code, Sum, root, 1.0, 1.0, number, None, "", 0
    )


@accepting
def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a broadcast into a new tensor; returns a handle for ``poll`` and ``synchronize``."""
    code_of(tensor, "broadcast", name)
    output = torch.empty_like(tensor)
    work = _start(tensor, output, root_rank, name, process_set)
    return handles.add((work,), lambda: output, (tensor, output))


@accepting
def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a broadcast in place; returns a handle. The tensor must be left alone until ``synchronize``."""
    work = _start(tensor, tensor, root_rank, name, process_set)
    return handles.add((work,), lambda: tensor, tensor)


@accepting
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Broadcast in place; returns ``tensor``. Autograd does not see it."""
    work = handles.start(lambda: _start(tensor, tensor, root_rank, name, process_set, blocking=True), tensor)
    handles.wait(work, tensor)
    return tensor


@accepting
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Broadcast into a new tensor. The gradient is averaged over the ranks on the root, and zero elsewhere."""
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
        # Every rank takes part in the reduction, but only the root's input had an effect. The zeros stay connected to
        # `averaged`, so that every rank takes part in the second derivative, too.
        if face.require_job().rank != root_rank:
            averaged = averaged.masked_fill(averaged.new_ones((), dtype=torch.bool), 0)
        return averaged, None, None, None
