"""Losses of several outputs, with weights of outputs and of rows."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

Loss = Callable[[Any, Any], Any]
"""Of an output and its label."""


def as_list(losses: Any) -> list[Any]:
    return list(losses) if isinstance(losses, (list, tuple)) else [losses]


def made(losses: Any, constructors: Any, by_row: bool) -> list[Loss]:
    """``losses``, or what ``constructors`` return. ``by_row``: without the mean over the rows, where losses know how
    to: modules with a ``reduction``, functions and constructors that take one. Others have to return a value for each
    row by themselves."""
    if constructors is not None:
        return [
            one(reduction="none") if by_row and _takes_reduction(one) else _by_row(one(), by_row)
            for one in as_list(constructors)
        ]
    return [_by_row(one, by_row) for one in as_list(losses)]


def _by_row(loss: Any, by_row: bool) -> Loss:
    if not by_row:
        return loss  # type: ignore[no-any-return]
    if hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
        return loss  # type: ignore[no-any-return]
    if _takes_reduction(loss):
        return lambda output, label: loss(output, label, reduction="none")
    return loss  # type: ignore[no-any-return]


def _takes_reduction(function: Any) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def total(
    losses: Sequence[Loss],
    weights: Sequence[float] | None,
    outputs: Sequence[Any],
    labels: Sequence[Any],
    sample_weights: Any,
) -> Any:
    """The sum of the losses, each times its weight; with ``sample_weights`` each the mean over the rows of a row's loss
    times its weight. Raises ValueError for outputs that are more or fewer than labels, and for losses that are not one
    value for each row where rows have weights."""
    if len(outputs) != len(labels):
        raise ValueError(f"the model has {len(outputs)} outputs, label_cols are {len(labels)}")
    used = list(losses) if len(losses) > 1 else list(losses) * len(labels)
    if len(used) != len(labels):
        raise ValueError(
            f"loss has {len(used)} functions, accepted is one, or one for each of {len(labels)} label_cols"
        )
    result: Any = 0
    for number, (loss, output, label) in enumerate(zip(used, outputs, labels, strict=True)):
        value = loss(output, shaped_like(label, output))
        if sample_weights is not None:
            if value.ndim == 0 or len(value) != len(sample_weights):
                raise ValueError(
                    f"loss {number} returns a value of shape {tuple(value.shape)} for {len(sample_weights)} rows; with "
                    "sample_weight_col accepted are losses with a reduction, or of one value for each row"
                )
            value = (value.reshape(len(value), -1).mean(1) * sample_weights).mean()
        result = result + value * (1.0 if weights is None else weights[number])
    return result


def shaped_like(label: Any, output: Any) -> Any:
    """A label of floating numbers, as many as its output has, in the output's shape: PyTorch would make a table of (n)
    and (n, 1)."""
    if label.is_floating_point() and label.shape != output.shape and label.numel() == output.numel():
        return label.reshape(output.shape)
    return label
