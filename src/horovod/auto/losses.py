"""Weights of losses that are no means over the samples: sums, and means over tokens or over weighted classes.

A backward pass multiplies all gradients by the rank's fraction of the samples, which is wrong for such reductions.
"""

from collections.abc import Iterator
from typing import Any

import torch

import horovod.torch as hvd
from horovod.auto.progress import Batch

_SCALAR = {"AddBackward0", "SubBackward0", "MulBackward0", "NegBackward0", "ToCopyBackward0", "ViewBackward0"}
_MEAN, _SUM = 1, 2  # values of the argument "reduction" of loss functions


def _is_penalty(node: Any) -> bool:
    """Return True for a sum over the elements of a single leaf, such as the squares of a parameter."""
    leaves, pending, seen = set(), [node], set()
    while pending and len(leaves) < 2:
        one = pending.pop()
        if hasattr(one, "variable"):
            leaves.add(one.variable)
        after = [inner for inner, _ in one.next_functions if inner is not None and inner not in seen]
        seen.update(after)
        pending += after
    return len(leaves) == 1 and leaves.pop().shape == node._saved_self_sym_sizes


def _reductions(roots: tuple[torch.Tensor, ...], rows: int) -> Iterator[tuple[Any, float | None, bool]]:
    """Yield sums and weighted means as (node, what divides the sum or None, True if that may be a constant)."""
    pending: list[tuple[Any, float | None]] = [(root.grad_fn, None) for root in roots]
    while pending:
        node, divisor = pending.pop()
        kind = "" if node is None else node.name()
        sizes, reduction = getattr(node, "_saved_self_sym_sizes", None), getattr(node, "_saved_reduction", None)
        inner = [one for one, _ in node.next_functions] if node is not None else []
        if kind in _SCALAR or (kind in ("SumBackward0", "MeanBackward0") and not sizes):
            pending += [(one, divisor) for one in inner]
        elif kind == "DivBackward0" and node._saved_other.numel() == 1:
            pending.append((inner[0], float(node._saved_other) * (divisor or 1)))
        elif reduction == _SUM or (kind == "SumBackward0" and sizes[0] % rows == 0 and not _is_penalty(node)):
            yield node, divisor, True
        elif (
            kind.startswith("NllLoss")
            and reduction == _MEAN
            and (node._saved_weight is not None or node._saved_target.numel() != rows)
        ):
            yield node, float(node._saved_total_weight), False


def correct(roots: tuple[torch.Tensor, ...], batch: Batch) -> list[Any]:
    """Weight such reductions by their own divisors during the next backward pass. Return the hooks to remove."""
    found = list(_reductions(roots, max(batch.own, 1)))
    divisors = torch.tensor([0 if d is None or not batch.own else d for _, d, _ in found], dtype=torch.float64)
    if any(d is not None for _, d, _ in found):
        totals = hvd.allreduce(divisors, name=f"auto.divisors.{len(found)}", op=hvd.Sum).tolist()
    hooks = []
    for i, (node, divisor, unknown) in enumerate(found):
        # A smaller divisor than the number of samples is a constant, such as the number of accumulated batches.
        constant = divisor is None or (unknown and totals[i] < batch.total)
        factor = 1.0 if constant else divisor / totals[i]  # type: ignore[operator]
        ratio = factor * batch.total / max(batch.own, 1)
        hooks.append(node.register_prehook(lambda grads, ratio=ratio: tuple(g * ratio for g in grads)))
    return hooks
