"""Conversion of the reader's batches to inputs of Keras models. Does not import Keras."""

from collections.abc import Sequence
from typing import Any

from horovod.spark.common.columns import fits
from horovod.spark.common.plan import Plan, pick, reshaped

Shape = tuple[int | None, ...]


def input_shapes(model: Any) -> list[Shape] | None:
    """Return the shapes of the model's inputs without the dimension of rows, or None if they are unknown."""
    inputs = getattr(model, "inputs", None)
    return None if not inputs else [tuple(one.shape[1:]) for one in inputs]


def check_inputs(names: Sequence[str], shapes: Sequence[Shape] | None) -> None:
    """Raise ValueError unless there is one feature for each of the model's inputs, if their number is known."""
    if shapes is not None and len(shapes) != len(names):
        raise ValueError(
            f"feature_cols are {list(names)}, the model has {len(shapes)} inputs, accepted is a column for each; a "
            "VectorAssembler makes one column of several"
        )


def inputs_of(values: Sequence[Any], names: Sequence[str], shapes: Sequence[Shape] | None) -> Any:
    """Return the features in the shapes of the model's inputs, as an array, or a tuple of several arrays.

    Raises:
        ValueError: If a feature does not fit. The message names it.
    """
    check_inputs(names, shapes)
    made = []
    if shapes is None:
        made = list(values)
    else:
        for name, value, shape in zip(names, values, shapes, strict=True):
            wanted = [-1 if size is None else size for size in shape]
            if wanted.count(-1) <= 1:
                if not fits(value.shape[1:], wanted):
                    raise ValueError(f"feature {name!r} has rows of shape {value.shape[1:]}, the model's input {shape}")
                value = reshaped(value, wanted)
            made.append(value)
    return made[0] if len(made) == 1 else tuple(made)


def for_fit(batch: dict[str, Any], plan: Plan, shapes: Sequence[Shape] | None) -> tuple[Any, ...]:
    """Return a tuple of inputs, labels and, if there is a weight column, the rows' weights."""
    inputs = inputs_of(pick(batch, plan.features, "feature_cols"), plan.features, shapes)
    labels = []
    for number, value in enumerate(pick(batch, plan.labels, "label_cols")):
        labels.append(reshaped(value, None if plan.label_shapes is None else plan.label_shapes[number]))
    targets = labels[0] if len(labels) == 1 else tuple(labels)
    if plan.weight is None:
        return inputs, targets
    weights = pick(batch, [plan.weight], "sample_weight_col")[0]
    return inputs, targets, weights if len(labels) == 1 else tuple(weights for _ in labels)
