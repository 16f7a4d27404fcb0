"""``MetricAverageCallback``: the metrics of an epoch over all ranks."""

import math
from typing import Any

from horovod._keras import batches, metric_sums
from horovod._keras.metric_sums import MetricSums
from horovod._keras.rates import bring_values, known_rate
from horovod.common.objects import allgather_object
from horovod.common.state import state


class MetricAverage:
    """Callback that replaces the metrics in ``logs`` by those of all ranks at the end of every epoch.

    Place it before callbacks that use metrics, because ``logs`` is changed in place.

    For Keras metrics, the result is what one process would compute from the data of all ranks, including sample
    weights: the sums that a metric is computed from are added over the ranks. Other values, such as those of a user's
    subclass of ``Metric``, are averaged over the ranks that have them. Each rank is weighted by the number of samples
    that it has seen in the epoch, or in the validation for ``val_`` metrics. This number comes from the model's own
    average of the loss. If the model of any rank has none, for example because its ``train_step`` does not update it,
    all ranks have the same weight.

    Args:
        device (str): Ignored; accepted for compatibility.
    """

    _hvd_face: Any

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device
        self._trained: tuple[float | None, MetricSums] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._trained = None

    def on_test_begin(self, logs: Any = None) -> None:
        # The validation at the end of an epoch resets the counts.
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
        rate = known_rate(model) if batches.concerns(model) else None
        mine = (values, samples, [one.shapes for one in sums], known, batches.Place(epoch, False, rate))
        face = self._hvd_face
        everybody = allgather_object(mine, name="MetricAverageCallback", face=face.adapter.face)
        if batches.concerns(model):
            batches.compare_places([entry[4] for entry in everybody])
        found: dict[str, float] = {}
        for which, prefix in enumerate(("", "val_")):
            shared = set.intersection(*(set(entry[3][which]) for entry in everybody))
            if shared and all(entry[2][which] == everybody[0][2][which] for entry in everybody):
                joined = metric_sums.over_all_ranks(face, model, sums[which], f"MetricAverageCallback.{which}")
                found.update({prefix + name: joined[name] for name in shared})
        for key in values if logs is not None else ():
            which = 1 if key.startswith("val_") else 0
            pairs = [(entry[0][key], entry[1][which]) for entry in everybody if key in entry[0]]
            logs[key] = found[key] if key in found else average(pairs)

    def _counted(self) -> tuple[float | None, MetricSums]:
        """Return (number of samples seen, or None if unknown; the sums of the metrics)."""
        model = self.model  # type: ignore[attr-defined]
        bring_values(model)
        loss = next((metric for metric in model.metrics if metric.name == "loss" and hasattr(metric, "count")), None)
        samples = None if loss is None else float(loss.count)
        return samples, metric_sums.take(self._hvd_face.keras, model)


def _confirmed(sums: MetricSums, logs: dict[str, float], prefix: str) -> list[str]:
    """Return the metrics whose logged value agrees with their sums.

    A ``train_step`` may log other values under the same names.
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

    All weights count as equal if one is unknown or all are zero.
    """
    first = pairs[0][0]
    if all(value == first for value, _ in pairs):
        return first  # avoids rounding
    total = sum(weight or 0.0 for _, weight in pairs)
    if total <= 0 or any(weight is None for _, weight in pairs):
        return sum(value for value, _ in pairs) / len(pairs)
    # Skip zero weights, because 0 * infinity is NaN.
    return sum(value * weight for value, weight in pairs if weight) / total
