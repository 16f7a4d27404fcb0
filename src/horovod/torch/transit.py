"""Gradients that already exist when a backward pass adds to them, and must not be reduced again.

A program may run several backward passes before it resets gradients: for several losses, or to accumulate. The results
of earlier passes are already reduced; only what the new pass adds must be. For Average this makes no difference,
because the average of equal values is the same value. So nothing is done, and the behavior is that of DDP. For other
operations the old values are removed before autograd adds, and are added to the result.
"""

from horovod.torch.buckets import Slot


def put_aside(slot: Slot) -> None:
    """Move the parameter's gradient to ``slot.before``."""
    p = slot.parameter
    grad = p.grad
    if grad is not None and slot.before is None:
        # A gradient in a bucket is copied, because its memory is needed for the new one.
        slot.before = grad.detach().clone() if grad is slot.view else grad
        p.grad = None


def bring_back(slot: Slot) -> None:
    """Add the values moved by ``put_aside`` to the result in ``param.grad``.

    As when autograd accumulates, the earlier tensor remains the gradient, unless the result is in a bucket.
    """
    before, slot.before = slot.before, None
    p = slot.parameter
    result = p.grad
    if before is None:
        return
    if result is None:
        p.grad = before
    elif before.is_sparse:
        p.grad = result.detach() + before.detach()  # two sparse tensors, or a dense and a sparse one
    elif result is slot.view or result.requires_grad:
        result.detach().add_(before.detach())
    else:
        before.detach().add_(result)
        p.grad = before
