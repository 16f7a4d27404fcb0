"""Conversion of the reader's batches to inputs of PyTorch models."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from horovod.spark.common.plan import Plan, pick, reshaped


def floating_dtype(model: torch.nn.Module) -> torch.dtype:
    """Return the dtype of the model's first floating-point parameter, or PyTorch's default dtype."""
    found = (one.dtype for one in model.parameters() if one.is_floating_point())
    return next(found, torch.get_default_dtype())


def inputs_of(
    values: Sequence[Any], names: Sequence[str], shapes: Sequence[Sequence[int]] | None, dtype: torch.dtype, device: Any
) -> list[torch.Tensor]:
    """Return the features as tensors of the model's input shapes.

    Args:
        values: Arrays or tensors of the features.
        names: Their names, for messages.
        shapes: Shape of each feature, with -1 for rows; None keeps the shapes.
        dtype: Dtype for floating-point features; others keep theirs.
        device: Device of the tensors.

    Raises:
        ValueError: If a feature cannot be reshaped or converted. The message names it.
    """
    made = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        tensor = _tensor(value, f"feature {name!r}", device)
        if shapes is not None:
            size = math.prod(tensor.shape[1:])
            try:
                tensor = reshaped(tensor, shapes[number])
            except RuntimeError:
                raise ValueError(
                    f"input_shapes gives feature {name!r} the shape {list(shapes[number])}, its rows have {size} "
                    "numbers"
                ) from None
        made.append(tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return made


def labels_of(values: Sequence[Any], plan: Plan, dtype: torch.dtype, device: Any) -> list[torch.Tensor]:
    """Return the labels as tensors in the plan's shapes: floating-point ones in `dtype`, integers as int64."""
    made = []
    for number, (name, value) in enumerate(zip(plan.labels, values, strict=True)):
        tensor = _tensor(value, f"label {name!r}", device)
        tensor = reshaped(tensor, None if plan.label_shapes is None else plan.label_shapes[number])
        made.append(
            tensor.to(dtype) if tensor.is_floating_point() else tensor.long() if tensor.dtype != torch.bool else tensor
        )
    return made


def split(batch: dict[str, Any], plan: Plan, shapes: Any, dtype: torch.dtype, device: Any) -> tuple[Any, Any, Any]:
    """Split a batch into features, labels and the rows' weights (None without a weight column)."""
    features = inputs_of(pick(batch, plan.features, "feature_cols"), plan.features, shapes, dtype, device)
    labels = labels_of(pick(batch, plan.labels, "label_cols"), plan, dtype, device)
    weights = None
    if plan.weight is not None:
        weights = _tensor(pick(batch, [plan.weight], "sample_weight_col")[0], "sample_weight_col", device).to(dtype)
    return features, labels, weights


def outputs_of(result: Any) -> list[torch.Tensor]:
    """Return a model's output, or its tuple or list of outputs, as a list."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


def shapes_of(outputs: Sequence[torch.Tensor]) -> list[tuple[tuple[int, ...], str]]:
    """Return for each output the shape of one row's value, and the name of the dtype."""
    return [(tuple(one.shape[1:]), str(one.dtype).removeprefix("torch.")) for one in outputs]


def _tensor(value: Any, what: str, device: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        try:
            value = torch.as_tensor(value, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{what} cannot become a tensor: {error}") from None
    return value.to(device)
