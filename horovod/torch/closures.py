"""Closures of ``optimizer.step(closure)``: all ranks get the same loss and the same gradients from them.

An optimizer that searches along a line (LBFGS) decides by the loss how often it calls the closure. With each rank's own
loss ranks would decide differently, and those that call it once more would wait for the others.
"""

from collections.abc import Callable
from typing import Any

import torch

from horovod.common.ops import Average, Sum
from horovod.torch.gradients import GradientReducer
from horovod.torch.ops.allreduce import allreduce_


def reducing(closure: Callable[[], Any], reducer: GradientReducer) -> Callable[[], Any]:
    """``closure``, with gradients and loss reduced over the reducer's ranks, which all call it.

    The loss may be a number, a tensor with one element, or None. It is summed if gradients are, otherwise averaged:
    then gradients are those of the loss.
    """

    def run() -> Any:
        reducer.stepped()  # the closure may make a backward pass on some ranks only
        reducer.coverage.leave_alone()
        loss = closure()
        reducer.synchronize(only_new=True)
        reducer.reduce_left_out()
        return _reduce(loss, reducer)

    return run


def _reduce(loss: Any, reducer: GradientReducer) -> Any:
    known = isinstance(loss, int | float) or (isinstance(loss, torch.Tensor) and loss.numel() == 1)
    # In every case and of one type, so that ranks agree about the operation whatever their closures return.
    number = loss.item() if isinstance(loss, torch.Tensor) and known else loss  # float() warns of graphs
    value = torch.tensor([number if known else 0.0], dtype=torch.float64, device="cpu")
    op = Sum if reducer.options.op == Sum else Average
    allreduce_(value, name=f"{reducer.name}.loss", op=op, process_set=reducer.options.process_set)
    if not known:
        return loss
    if isinstance(loss, torch.Tensor):
        return torch.full_like(loss.detach(), value.item())
    return value.item()
