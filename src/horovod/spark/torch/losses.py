"""Losses for several outputs, with weights for outputs and rows."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from horovod.spark.torch.batches import outputs_of

Loss = Callable[[Any, Any], Any]
"""Function of an output and its label."""


def as_list(losses: Any) -> list[Any]:
    """Return a list of the given loss or losses."""
    return list(losses) if isinstance(losses, (list, tuple)) else [losses]


def made(losses: Any, constructors: Any, by_row: bool, labels: int = 1) -> list[Loss]:
    """Return a loss function for each label.

    Args:
        losses: A loss, or a list with one for each label.
        constructors: Functions that return the losses, used instead of ``losses`` unless None.
        by_row: Whether the losses should return one value per row. This works for modules with an attribute
            ``reduction``, and for functions and constructors with such a parameter. Other losses must return one value
            per row by themselves.
        labels: Number of labels.

    Raises:
        ValueError: If there are several losses, but not one for each label.
    """
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
    """Return the weighted sum of the losses of all outputs.

    Args:
        losses: Loss of each output.
        weights: Weight of each loss; None means 1.
        outputs: The model's outputs.
        labels: The labels.
        sample_weights: Weight of each row's loss before the mean over rows; None means no weights.

    Raises:
        ValueError: If the numbers of outputs and labels differ, or if there are row weights and a loss does not return
            one value per row.
    """
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
    """Return the model's outputs as a list, and the labels in the shapes of the outputs (see ``shaped_like``).

    Raises:
        ValueError: If the numbers of outputs and labels differ.
    """
    outputs = outputs_of(result)
    if len(outputs) != len(labels):
        raise ValueError(f"the model has {len(outputs)} outputs, label_cols are {len(labels)}")
    return outputs, [shaped_like(label, output) for label, output in zip(labels, outputs, strict=True)]


def shaped_like(label: Any, output: Any) -> Any:
    """Return a floating-point label in the shape of its output, if both have the same number of elements.

    Otherwise PyTorch would broadcast shapes such as (n) and (n, 1) to (n, n).
    """
    if label.is_floating_point() and label.shape != output.shape and label.numel() == output.numel():
        return label.reshape(output.shape)
    return label
