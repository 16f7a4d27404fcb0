"""Functions that convert batches to tensors and compute the weighted losses of PyTorch models."""

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.spark.common.plan import TrainingPlan, pick, reshaped

# -- inputs of models ------------------------------------------------------------------------------------------------


def floating_dtype(model: torch.nn.Module) -> torch.dtype:
    """Return the dtype of the model's first floating-point parameter, or PyTorch's default dtype."""
    found = (one.dtype for one in model.parameters() if one.is_floating_point())
    return next(found, torch.get_default_dtype())


def inputs_of(
    values: Sequence[Any], names: Sequence[str], shapes: Sequence[Sequence[int]] | None, dtype: torch.dtype, device: Any
) -> list[torch.Tensor]:
    """Return the features as tensors in the shapes of the model's inputs.

    Args:
        values: Arrays or tensors of the features.
        names: Names of the features, for messages.
        shapes: Shape of each feature, with -1 for the number of rows. None keeps the shapes.
        dtype: Dtype of floating-point features. Other features keep their dtypes.
        device: Device of the tensors.

    Raises:
        ValueError: If a feature cannot be reshaped or converted. The message names it.
    """
    inputs = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        tensor = _tensor(value, f"feature {name!r}", device)
        if shapes is not None:
            size = math.prod(tensor.shape[1:])
            try:
                tensor = reshaped(tensor, shapes[number])
            except RuntimeError:
                raise ValueError(
                    f"input_shapes: the shape of feature {name!r} must fit its rows of {size} numbers, got "
                    f"{list(shapes[number])}"
                ) from None
        inputs.append(tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return inputs


def labels_of(values: Sequence[Any], plan: TrainingPlan, dtype: torch.dtype, device: Any) -> list[torch.Tensor]:
    """Return the labels as tensors in the plan's shapes. Floating-point labels get `dtype`, and others are int64."""
    made = []
    for number, (name, value) in enumerate(zip(plan.labels, values, strict=True)):
        tensor = _tensor(value, f"label {name!r}", device)
        tensor = reshaped(tensor, None if plan.label_shapes is None else plan.label_shapes[number])
        made.append(
            tensor.to(dtype) if tensor.is_floating_point() else tensor.long() if tensor.dtype != torch.bool else tensor
        )
    return made


def split(
    batch: dict[str, Any], plan: TrainingPlan, shapes: Any, dtype: torch.dtype, device: Any
) -> tuple[Any, Any, Any]:
    """Split a batch into features, labels and weights of the rows.

    Returns:
        Features, labels and weights. The weights are None if there is no weight column.
    """
    features = inputs_of(pick(batch, plan.features, "feature_cols"), plan.features, shapes, dtype, device)
    labels = labels_of(pick(batch, plan.labels, "label_cols"), plan, dtype, device)
    weights = None
    if plan.weight is not None:
        weights = _tensor(pick(batch, [plan.weight], "sample_weight_col")[0], "sample_weight_col", device).to(dtype)
    return features, labels, weights


def outputs_of(result: Any) -> list[torch.Tensor]:
    """Return a model's outputs as a list. A model may return a single output, a tuple or a list."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


def shapes_of(outputs: Sequence[torch.Tensor]) -> list[tuple[tuple[int, ...], str]]:
    """Return, for each output, the shape of the value in one row and the name of the dtype."""
    return [(tuple(one.shape[1:]), str(one.dtype).removeprefix("torch.")) for one in outputs]


def _tensor(value: Any, what: str, device: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        try:
            value = torch.as_tensor(value, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{what} cannot become a tensor: {error}") from None
    return value.to(device)


Loss = Callable[[Any, Any], Any]
"""Function of an output and its label."""


def as_list(losses: Any) -> list[Any]:
    """Return the losses as a list, even if there is only one."""
    return list(losses) if isinstance(losses, (list, tuple)) else [losses]


def make(losses: Any, constructors: Any, by_row: bool, labels: int = 1) -> list[Loss]:
    """Return a loss function for each label.

    Args:
        losses: Loss, or list with a loss for each label.
        constructors: Functions that return the losses. If they are given, ``losses`` is ignored.
        by_row: True if the losses should return one value per row. This works for modules with an attribute
            ``reduction``, and for functions and constructors with such a parameter. Other losses must return one value
            per row by themselves.
        labels: Number of labels.

    Raises:
        ValueError: If there are several losses, but not exactly one for each label.
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
        raise ValueError(f"loss must have one function, or one for each of {labels} label_cols, got {len(found)}")
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
        weights: Weight of each loss, or None for equal weights of 1.
        outputs: Outputs of the model.
        labels: Labels of the rows.
        sample_weights: Weight of each row's loss before the mean over all rows, or None for no weights.

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
                    f"with sample_weight_col, loss {number} must have a reduction or return one value for each row, "
                    f"got shape {tuple(value.shape)} for {len(sample_weights)} rows"
                )
            value = (value.reshape(len(value), -1).mean(1) * sample_weights).mean()
        result = result + value * (1.0 if weights is None else weights[number])
    return result


def fitted(result: Any, labels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the model's outputs as a list, and the labels reshaped like the outputs (see ``shaped_like``).

    Raises:
        ValueError: If the numbers of outputs and labels differ.
    """
    outputs = outputs_of(result)
    if len(outputs) != len(labels):
        raise ValueError(f"the model must have one output for each of {len(labels)} label_cols, got {len(outputs)}")
    return outputs, [shaped_like(label, output) for label, output in zip(labels, outputs, strict=True)]


def shaped_like(label: Any, output: Any) -> Any:
    """Reshape a floating-point label like its output, if both have the same number of elements.

    Otherwise, PyTorch would broadcast shapes such as (n) and (n, 1) to (n, n).

    Returns:
        The label, with a new shape if necessary.
    """
    if label.is_floating_point() and label.shape != output.shape and label.numel() == output.numel():
        return label.reshape(output.shape)
    return label
