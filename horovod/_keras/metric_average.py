"""``MetricAverageCallback``: the metrics of an epoch over all ranks."""

import math
from typing import Any

from horovod._keras import batches, metric_sums
from horovod._keras.metric_sums import MetricSums
from horovod._keras.rates import bring_values, known_rate
from horovod.common.objects import allgather_object
from horovod.common.state import state


class MetricAverage:
    """Puts the metrics over all ranks into ``logs`` at the end of every epoch, in place, so that the callbacks after
    this one see them: put it before those that use metrics.

    Metrics of Keras are what one process would have with the data of all ranks, with sample weights too: what they are
    computed from is added up over the ranks. Other values, as those of a user's own subclass of ``Metric``, are
    averaged over the ranks that have them. There ranks count by the samples that they have seen in the epoch (for
    ``val_`` metrics, in the validation), known from the model's own average of the loss. Ranks whose model keeps none,
    as with a ``train_step`` that does not update it, are averaged with equal weights, all of them if one is so.
    """

    _hvd_face: Any

    def __init__(self, device: str = "") -> None:
        """``device``: accepted for old programs."""
        super().__init__()
        self.device = device
        self._trained: tuple[float | None, MetricSums] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._trained = None

    def on_test_begin(self, logs: Any = None) -> None:
        # The validation at the end of an epoch starts to count anew.
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
        """How many samples were seen, None if that is not known, and the sums of the metrics."""
        model = self.model  # type: ignore[attr-defined]
        bring_values(model)
        loss = next((metric for metric in model.metrics if metric.name == "loss" and hasattr(metric, "count")), None)
        samples = None if loss is None else float(loss.count)
        return samples, metric_sums.take(self._hvd_face.keras, model)


def _confirmed(sums: MetricSums, logs: dict[str, float], prefix: str) -> list[str]:
    """The metrics that are in the logs as their sums say: a ``train_step`` may log others under the same names."""
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
    """Of (value, weight) pairs: with equal weights unless all are known and not all zero."""
    first = pairs[0][0]
    if all(value == first for value, _ in pairs):
        return first  # exactly
    total = sum(weight or 0.0 for _, weight in pairs)
    if total <= 0 or any(weight is None for _, weight in pairs):
        return sum(value for value, _ in pairs) / len(pairs)
    # 0 * infinity is no number: a rank that has seen nothing says nothing.
    return sum(value * weight for value, weight in pairs if weight) / total
