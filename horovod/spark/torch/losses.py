"""Losses of several outputs, with weights of outputs and of rows."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from horovod.spark.torch.batches import outputs_of

Loss = Callable[[Any, Any], Any]
"""Of an output and its label."""


def as_list(losses: Any) -> list[Any]:
    return list(losses) if isinstance(losses, (list, tuple)) else [losses]


def made(losses: Any, constructors: Any, by_row: bool, labels: int = 1) -> list[Loss]:
    """``losses``, or what ``constructors`` return, one for each of so many ``labels``. ``by_row``: without the mean
    over the rows, where losses know how to: modules with a ``reduction``, functions and constructors that take one.
    Others have to return a value for each row by themselves. Raises ValueError for several losses that are not as many
    as the labels."""
    if constructors is not None:
        found = [
            one(reduction="none") if by_row and _takes_reduction(one) else _by_row(one(), by_row)
            for one in as_list(constructors)
        ]
    else:
        found = [_by_row(one, by_row) for one in as_list(losses)]
    found = found * labels if len(found) == 1 else found
    if len(found) != labels:
        raise ValueError(f"loss has {len(found)} functions, accepted is one, or one for each of {labels} label_cols")
    return found


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
    """The sum of the losses, one of each output, each times its weight; with ``sample_weights`` each the mean over the
    rows of a row's loss times its weight. Raises ValueError for outputs that are more or fewer than labels, and for
    losses that are not one value for each row where rows have weights."""
    outputs, labels = fitted(outputs, labels)
    result: Any = 0
    for number, (loss, output, label) in enumerate(zip(losses, outputs, labels, strict=True)):
        value = loss(output, label)
        if sample_weights is not None:
            if value.ndim == 0 or len(value) != len(sample_weights):
                raise ValueError(
                    f"loss {number} returns a value of shape {tuple(value.shape)} for {len(sample_weights)} rows; with "
                    "sample_weight_col accepted are losses with a reduction, or of one value for each row"
                )
            value = (value.reshape(len(value), -1).mean(1) * sample_weights).mean()
        result = result + value * (1.0 if weights is None else weights[number])
    return result


def fitted(result: Any, labels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What a model returns, an output or several, as a list, and the labels in the outputs' shapes (``shaped_like``).
    Raises ValueError for outputs that are more or fewer than labels."""
    outputs = outputs_of(result)
    if len(outputs) != len(labels):
        raise ValueError(f"the model has {len(outputs)} outputs, label_cols are {len(labels)}")
    return outputs, [shaped_like(label, output) for label, output in zip(labels, outputs, strict=True)]


def shaped_like(label: Any, output: Any) -> Any:
    """A label of floating numbers, as many as its output has, in the output's shape: PyTorch would make a table of (n)
    and (n, 1)."""
    if label.is_floating_point() and label.shape != output.shape and label.numel() == output.numel():
        return label.reshape(output.shape)
    return label
