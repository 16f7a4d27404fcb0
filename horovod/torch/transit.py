"""What ``param.grad`` holds already when a backward pass adds to it, and is not to be reduced again.

A program may go backward several times before it makes the gradients None: for several losses, or to accumulate. What
the earlier passes left there is reduced; only what the new one adds is to be. For Average that makes no difference, as
the average of what is equal on all ranks is that, so nothing is done and DDP's users find what they know. For other
operations the old values are put aside before autograd adds, and added to the result.
"""

from horovod.torch.buckets import Slot


def put_aside(slot: Slot) -> None:
    """Leaves the parameter without a gradient; ``slot.before`` has what it was."""
    p = slot.parameter
    grad = p.grad
    if grad is not None and slot.before is None:
        # A bucket's memory is needed for what comes.
        slot.before = grad.detach().clone() if grad is slot.view else grad
        p.grad = None


def bring_back(slot: Slot) -> None:
    """Adds what was put aside to the result in ``param.grad``. The tensor that was there stays the gradient, as it does
    when autograd adds to it, unless the result lies in a bucket."""
    before, slot.before = slot.before, None
    p = slot.parameter
    result = p.grad
    if before is None:
        return
    if result is None:
        p.grad = before
    elif before.is_sparse:
        p.grad = result.detach() + before.detach()  # two sparse ones, or a dense and a sparse one
    elif result is slot.view or result.requires_grad:
        result.detach().add_(before.detach())
    else:
        before.detach().add_(result)
        p.grad = before
