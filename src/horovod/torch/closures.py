"""Closures of ``optimizer.step(closure)``: every rank gets the same loss and the same gradients.

Line-search optimizers (LBFGS) decide by the loss how often to call the closure. If each rank used its own loss, ranks
would decide differently, and a rank that calls the closure once more would wait for the others.
"""

from collections.abc import Callable
from typing import Any

import torch

from horovod.common.ops import Average, Sum
from horovod.torch.gradients import GradientReducer
from horovod.torch.ops.allreduce import allreduce_


def reducing(closure: Callable[[], Any], reducer: GradientReducer) -> Callable[[], Any]:
    """Return ``closure`` with loss and gradients reduced over the reducer's ranks, which all must call it.

    The loss may be a number, a tensor with one element, or None. It is summed if the gradients are summed and averaged
    otherwise, so that the gradients are those of the loss.
    """

    def run() -> Any:
        reducer.stepped()  # the closure may run a backward pass on only some of the ranks
        reducer.coverage.leave_alone()
        loss = closure()
        reducer.synchronize(only_new=True)
        reducer.reduce_left_out()
        return _reduce(loss, reducer)

    return run


def _reduce(loss: Any, reducer: GradientReducer) -> Any:
    known = isinstance(loss, int | float) or (isinstance(loss, torch.Tensor) and loss.numel() == 1)
    # Always reduce a float64, so that ranks run the same operation whatever their closures return.
    # Tensor.item() instead of float(), which would warn about graphs.
    number = loss.item() if isinstance(loss, torch.Tensor) and known else loss
    value = torch.tensor([number if known else 0.0], dtype=torch.float64, device="cpu")
    op = Sum if reducer.options.op == Sum else Average
    allreduce_(value, name=f"{reducer.name}.loss", op=op, process_set=reducer.options.process_set)
    if not known:
        return loss
    if isinstance(loss, torch.Tensor):
        return torch.full_like(loss.detach(), value.item())
    return value.item()
