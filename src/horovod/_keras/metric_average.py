"""Metrics over all ranks: ``compute_metric``, and a callback for the metrics of an epoch."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horovod._arrays.collectives import Reduction, allreduce_all
from horovod._keras import checks
from horovod._keras.backend import dtype_name
from horovod._keras.callbacks import current_rate, sample_count
from horovod.common.frontends import state
from horovod.common.objects import allgather_object
from horovod.common.ops import Sum
from horovod.common.process_sets import global_process_set

# Keras computes a metric from a few variables that change only by addition. For a mean, these are a weighted total and
# a sum of weights; for a confusion matrix, they are counts. The sums of these variables over the ranks are what one
# process would compute from the data of all ranks, for any sample weights and shard sizes. Metrics that may not work
# this way, such as a user's subclass of ``Metric``, are left to ``MetricAverage``.

Array = np.ndarray[Any, Any]


@dataclass
class MetricSums:
    """Snapshot of the sums from which Keras computes the metrics of a model.

    Attributes:
        values: Metric values on this rank alone, by name of the metric.
        sums: Values of the metrics' variables.
        shapes: Shapes and dtypes of the variables. They must be equal on all ranks, because the sums are added.
    """

    values: dict[str, float] = field(default_factory=dict)
    sums: list[Array] = field(default_factory=list)
    shapes: tuple[str, ...] = ()


def take(keras: Any, model: Any) -> MetricSums:
    """Return the sums of the model's metrics, or empty sums if reading the variables fails."""
    leaves = _leaves(model)
    variables = _variables(keras, leaves)
    try:
        sums = [_array(keras, variable) for variable in variables]
    except (AttributeError, RuntimeError, NotImplementedError):
        # Return no sums if variables cannot be read, for example in a tf.compat.v1 graph, where they have no value.
        return MetricSums()
    others = [str(metric.name) for metric in leaves if not _adds_up(keras, metric)]
    values = {
        name: value
        for name, value in _results(model).items()
        if not any(name == other or name.endswith(f"_{other}") for other in others)
    }
    return MetricSums(values, sums, tuple(f"{tuple(one.shape)} {dtype_name(one)}" for one in variables))


def over_all_ranks(frontend: Any, model: Any, own: MetricSums, name: str) -> dict[str, float]:
    """Compute the model's metrics over all ranks, and return them keyed by name.

    All ranks must call this function, with sums of the same shapes.

    Args:
        frontend: ``api.Frontend`` of this process.
        model: Model. Its metrics are restored before the function returns.
        own: This rank's sums.
        name: Name of the operation.
    """
    with _summed(frontend, _variables(frontend.keras, _leaves(model)), own.sums, name):
        return _results(model)


def compute(frontend: Any, metric: Any) -> Any:
    """Compute a metric over all ranks, as ``compute_metric`` in ``api.py`` describes."""
    keras, shapes, problem = frontend.keras, (), ""
    if not isinstance(metric, keras.metrics.Metric):
        problem = f"metric must be a Keras metric, got a {type(metric).__name__}"
    elif not metric.variables:
        problem = f"metric {metric.name!r} must have variables, which some metrics create in their first update"
    elif not _adds_up(keras, metric):
        problem = (
            f"metric must be a metric of Keras or a subclass of its Mean or Sum, whose variables can be added over the "
            f"ranks, got a {type(metric).__name__}; use hvd.gather_for_metrics"
        )
    else:
        shapes = tuple(f"{tuple(one.shape)} {dtype_name(one)}" for one in metric.variables)
    from_all = allgather_object((problem, shapes), name="compute_metric", frontend=frontend.adapter.frontend)
    for rank, (problem, theirs) in enumerate(from_all):
        if problem:
            raise ValueError(f"{problem} (rank {rank})")
        if theirs != from_all[0][1]:
            raise ValueError(
                f"metric must have the same variables on all ranks, got {shapes} and {theirs} (rank {rank})"
            )
    sums = [_array(keras, variable) for variable in metric.variables]
    with _summed(frontend, metric.variables, sums, "compute_metric"):
        result = metric.result()
        if isinstance(result, dict):
            return {name: _array(keras, value)[()] for name, value in result.items()}
        return _array(keras, result)[()]


@contextlib.contextmanager
def _summed(frontend: Any, variables: Sequence[Any], sums: Sequence[Array], name: str) -> Iterator[None]:
    """Replace variables with their sums over all ranks, and restore their values when the context exits."""
    flat = np.concatenate([np.ravel(one).astype(np.float64) for one in sums] or [np.zeros(0)])
    total = np.asarray(
        allreduce_all(frontend.adapter.frontend, [flat], [f"allreduce.{name}"], Reduction(Sum, global_process_set))[0]
    )
    before = [_array(frontend.keras, variable) for variable in variables]
    try:
        at = 0
        for variable, one in zip(variables, sums, strict=True):
            variable.assign(total[at : at + one.size].reshape(one.shape).astype(one.dtype))
            at += one.size
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _results(model: Any) -> dict[str, float]:
    """Return the scalar results of the metrics, keyed by the names that ``fit`` uses in its logs."""
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
        # Keras keeps the compiled metrics in a container. Replace it with the metrics in its list `metrics`.
        inner = getattr(metric, "metrics", None)
        # Keep an ordinary metric. In Keras 2, it also has a list `metrics`, but the list is empty.
        found.extend(inner or [metric])
    return found


def _variables(keras: Any, leaves: Sequence[Any]) -> list[Any]:
    return [variable for metric in leaves if _adds_up(keras, metric) for variable in metric.variables]


def _adds_up(keras: Any, metric: Any) -> bool:
    """Return True for Keras' own metrics, and for user-defined subclasses of its mean and sum metrics."""
    package = type(metric).__module__.partition(".")[0]
    if not metric.variables:
        return False
    return package in ("keras", "tf_keras") or isinstance(metric, (keras.metrics.Mean, keras.metrics.Sum))


def _array(keras: Any, variable: Any) -> Array:
    convert = getattr(getattr(keras, "ops", None), "convert_to_numpy", None)
    return np.array(convert(variable) if convert is not None else variable.numpy())


class MetricAverage:
    """Callback that, after each epoch, replaces the metrics in ``logs`` with their values over all ranks.

    Place it before callbacks that use metrics, because ``logs`` is changed in place.

    For Keras metrics, the result is what one process would compute from the data of all ranks, including sample
    weights: the sums that a metric is computed from are added over the ranks. Other values, such as those of a user's
    subclass of ``Metric``, are averaged over the ranks that have them. Each rank's weight is the number of samples that
    it has seen in the epoch, or in the validation for ``val_`` metrics. This number comes from the model's own average
    of the loss. If the model of any rank has no such average, for example because its ``train_step`` does not update
    it, all ranks have the same weight.

    Args:
        device (str): Ignored; accepted for compatibility.
    """

    _hvd_frontend: Any

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device
        self._trained: tuple[float | None, MetricSums] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._trained = None

    def on_test_begin(self, logs: Any = None) -> None:
        # Save the count now, because validation at the end of an epoch resets it.
        self._trained = self._counted()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if state.require_job().size == 1:
            return
        model = self.model  # type: ignore[attr-defined]
        now = self._counted()
        parts = (now, None) if self._trained is None else (self._trained, now)
        values = {key: float(value) for key, value in (logs or {}).items() if _is_number(value)}
        sums = [MetricSums() if part is None else part[1] for part in parts]
        known = [_confirmed(one, values, prefix) for one, prefix in zip(sums, ("", "val_"), strict=True)]
        samples = [None if part is None else part[0] for part in parts]
        rate = current_rate(model) if checks.concerns(model) else None
        mine = (values, samples, [one.shapes for one in sums], known, checks.Position(epoch, False, rate))
        frontend = self._hvd_frontend
        from_all = allgather_object(mine, name="MetricAverageCallback", frontend=frontend.adapter.frontend)
        if checks.concerns(model):
            checks.compare_places([entry[4] for entry in from_all])
        found: dict[str, float] = {}
        for which, prefix in enumerate(("", "val_")):
            shared = set.intersection(*(set(entry[3][which]) for entry in from_all))
            if shared and all(entry[2][which] == from_all[0][2][which] for entry in from_all):
                joined = over_all_ranks(frontend, model, sums[which], f"MetricAverageCallback.{which}")
                found.update({prefix + name: joined[name] for name in shared})
        for key in values if logs is not None else ():
            which = 1 if key.startswith("val_") else 0
            pairs = [(entry[0][key], entry[1][which]) for entry in from_all if key in entry[0]]
            logs[key] = found[key] if key in found else average(pairs)

    def _counted(self) -> tuple[float | None, MetricSums]:
        """Return the number of samples seen (None if unknown) and the sums of the metrics."""
        model = self.model  # type: ignore[attr-defined]
        return sample_count(model), take(self._hvd_frontend.keras, model)


def _confirmed(sums: MetricSums, logs: dict[str, float], prefix: str) -> list[str]:
    """Return the metrics whose logged value matches the value computed from their sums.

    A ``train_step`` can log other values under the same names.
    """
    return [
        name
        for name, value in sums.values.items()
        if prefix + name in logs
        and (
            math.isclose(value, logs[prefix + name], rel_tol=1e-5, abs_tol=1e-9)
            or (math.isnan(value) and math.isnan(logs[prefix + name]))
        )
    ]


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | str) or getattr(value, "shape", ()) not in ((), None):
        return False
    return hasattr(value, "__float__")


def average(pairs: list[tuple[float, float | None]]) -> float:
    """Return the weighted mean of (value, weight) pairs.

    If any weight is unknown or all are zero, all weights count as equal.
    """
    first = pairs[0][0]
    if all(value == first for value, _ in pairs):
        return first  # avoids rounding
    total = sum(weight or 0.0 for _, weight in pairs)
    if total <= 0 or any(weight is None for _, weight in pairs):
        return sum(value for value, _ in pairs) / len(pairs)
    # Skip values with weight 0, because such a value can be infinite, and 0 * infinity is NaN.
    return sum(value * weight for value, weight in pairs if weight) / total
