"""Step figures as OpenTelemetry gauges, exported by what the program has configured."""

from collections.abc import Callable, Iterable
from typing import Any

from horovod.common.telemetry.outlet import Figures

_GAUGES = (
    ("horovod.step.duration", "step_seconds", "s"),
    ("horovod.step.data", "data_seconds", "s"),
    ("horovod.step.exposed", "exposed_seconds", "s"),
    ("horovod.step.hidden", "hidden_seconds", "s"),
    ("horovod.efficiency", "efficiency", "1"),
    ("horovod.bandwidth", "bandwidth", "By/s"),
)
# Figures of the current job; the gauges are created once per process.
_current: list[Figures] = []
_made = False


class Gauges:
    """Exporter that is read on request."""

    def __init__(self, figures: Figures) -> None:
        global _made
        _current[:] = [figures]
        if _made:
            return
        _made = True
        from opentelemetry import metrics

        meter = metrics.get_meter("horovod")
        for name, figure, unit in _GAUGES:
            meter.create_observable_gauge(name, callbacks=[_reader(figure, metrics.Observation)], unit=unit)

    def write(self) -> None:
        pass

    def close(self) -> None:
        _current.clear()

    def leave_in_child(self) -> None:
        _current.clear()


def _reader(figure: str, observation: Any) -> Callable[[Any], Iterable[Any]]:
    def read(options: Any) -> Iterable[Any]:
        ranks = [rank for figures in _current for rank in figures()["ranks"]]
        return [observation(r[figure], {"horovod.rank": r["rank"]}) for r in ranks if r.get(figure) is not None]

    return read
