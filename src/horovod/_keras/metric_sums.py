"""Metrics over all ranks, computed from the sums that metrics keep.

A Keras metric is a function of a few variables that change only by addition: a mean has a weighted total and a sum of
weights, a confusion matrix has counts. Added over the ranks, they give what one process would compute from the data of
all ranks, for any sample weights and shard sizes. ``MetricAverage`` handles metrics for which this is not known, such
as a user's subclass of ``Metric``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horovod._arrays.collectives import Reduction, allreduce_all
from horovod._keras.versions import dtype_name
from horovod.common.ops import Sum
from horovod.common.process_sets import global_process_set

Array = np.ndarray[Any, Any]


@dataclass
class MetricSums:
    """The sums of a model's metrics at one moment.

    Attributes:
        values: Values of these metrics on this rank alone, by name.
        sums: Values of the variables.
        shapes: Shapes and dtypes of the variables, which must be equal on all ranks to add the sums.
    """

    values: dict[str, float] = field(default_factory=dict)
    sums: list[Array] = field(default_factory=list)
    shapes: tuple[str, ...] = ()


def take(keras: Any, model: Any) -> MetricSums:
    """Return the sums of the model's metrics, or empty sums if the variables cannot be read."""
    leaves = _leaves(model)
    variables = _variables(keras, leaves)
    try:
        sums = [_array(keras, variable) for variable in variables]
    except (AttributeError, RuntimeError, NotImplementedError):  # variables have no value in a graph of tf.compat.v1
        return MetricSums()
    others = [str(metric.name) for metric in leaves if not _adds_up(keras, metric)]
    values = {
        name: value
        for name, value in _results(model).items()
        if not any(name == other or name.endswith(f"_{other}") for other in others)
    }
    return MetricSums(values, sums, tuple(f"{tuple(one.shape)} {dtype_name(one)}" for one in variables))


def over_all_ranks(face: Any, model: Any, mine: MetricSums, name: str) -> dict[str, float]:
    """Return the model's metrics over all ranks, by name. All ranks call it, with sums of the same shapes.

    Args:
        face: An ``api.Face``.
        model: The model, whose metrics are unchanged on return.
        mine: This rank's sums.
        name: Name of the operation.
    """
    flat = np.concatenate([np.ravel(one).astype(np.float64) for one in mine.sums] or [np.zeros(0)])
    total = np.asarray(
        allreduce_all(face.adapter.face, [flat], [f"allreduce.{name}"], Reduction(Sum, global_process_set))[0]
    )
    variables = _variables(face.keras, _leaves(model))
    before = [_array(face.keras, variable) for variable in variables]
    try:
        at = 0
        for variable, one in zip(variables, mine.sums, strict=True):
            variable.assign(total[at : at + one.size].reshape(one.shape).astype(one.dtype))
            at += one.size
        return _results(model)
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _results(model: Any) -> dict[str, float]:
    """Return the scalar results of the metrics, named as in the logs of ``fit``."""
    found: dict[str, float] = {}
    for metric in model.metrics:
        result = metric.result()
        for name, value in (result if isinstance(result, dict) else {metric.name: result}).items():
            if getattr(value, "shape", ()) in ((), None):
                found[name] = float(value)
    return found


def _leaves(model: Any) -> list[Any]:
    found: list[Any] = []
    for metric in model.metrics:
        # The container of the compiled metrics lists them in `metrics`.
        inner = getattr(metric, "metrics", None)
        # Metrics of Keras 2 are layers, whose own list of metrics is empty.
        found.extend(inner or [metric])
    return found


def _variables(keras: Any, leaves: Sequence[Any]) -> list[Any]:
    return [variable for metric in leaves if _adds_up(keras, metric) for variable in metric.variables]


def _adds_up(keras: Any, metric: Any) -> bool:
    """Return True for Keras' metrics and for users' subclasses of its means and sums."""
    package = type(metric).__module__.partition(".")[0]
    if not metric.variables:
        return False
    return package in ("keras", "tf_keras") or isinstance(metric, (keras.metrics.Mean, keras.metrics.Sum))


def _array(keras: Any, variable: Any) -> Array:
    convert = getattr(getattr(keras, "ops", None), "convert_to_numpy", None)
    return np.array(convert(variable) if convert is not None else variable.numpy())
