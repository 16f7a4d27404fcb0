"""Step figures as scalars for TensorBoard, MLflow and similar tools."""

from collections.abc import Mapping
from typing import Any

_SHOWN = {
    "step_seconds": "step_ms",
    "data_seconds": "data_ms",
    "compute_seconds": "compute_ms",
    "exposed_seconds": "exposed_ms",
    "hidden_seconds": "hidden_ms",
}


def scalars(stats: Mapping[str, Any]) -> dict[str, float]:
    """Return the measured scalars in the result of ``hvd.stats()``, on rank 0 those of the last second if available."""
    job = stats.get("job")
    figures = job["lately"] if job and job["lately"]["steps"] else stats
    found = {f"horovod/{shown}": 1e3 * figures[name] for name, shown in _SHOWN.items() if figures.get(name) is not None}
    if figures.get("efficiency") is not None:
        found["horovod/efficiency"] = figures["efficiency"]
    if figures.get("bandwidth") is not None:
        found["horovod/bandwidth_gb_s"] = figures["bandwidth"] * 1e-9
    last = figures.get("last")
    if last is not None:
        found["horovod/last_rank"] = float(last["rank"])
        found["horovod/last_share"] = last["share"]
        found["horovod/last_ms"] = 1e3 * last["seconds"]
    return found


def send(to: Any, numbers: Mapping[str, float], step: int) -> None:
    """Write the scalars; see ``HorovodBasics.log_stats``."""
    if hasattr(to, "add_scalar"):
        for name, value in numbers.items():
            to.add_scalar(name, value, step)
    elif hasattr(to, "log_metrics"):
        to.log_metrics(dict(numbers), step=step)
    elif hasattr(to, "as_default"):
        import tensorflow as tf

        with to.as_default():
            for name, value in numbers.items():
                tf.summary.scalar(name, value, step)
    else:
        raise ValueError(
            "log_stats: to must be a SummaryWriter, a writer of tf.summary, the module mlflow, or another object with "
            f"add_scalar, as_default or log_metrics, got a {type(to).__name__}"
        )
