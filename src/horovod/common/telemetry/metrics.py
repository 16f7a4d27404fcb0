"""HTTP endpoint that serves step statistics to Prometheus and other OpenMetrics readers."""

from collections.abc import Callable, Iterator
from typing import Any

from horovod._bounded_server import BoundedServer, HttpRequest

Figures = Callable[[], dict[str, Any]]
"""Function that returns the result of ``Account.job``."""
_MOST = 16  # maximum number of connections, each of which needs a descriptor and a thread
_PARTS = {
    "data": "data_seconds",
    "compute": "compute_seconds",
    "exposed": "exposed_seconds",
    "hidden": "hidden_seconds",
    "all": "step_seconds",
}


class _Server:
    def __init__(self, server: BoundedServer) -> None:
        self._server = server

    def write(self) -> None:
        pass

    def close(self) -> None:
        self._server.close()

    def leave_in_child(self) -> None:
        self._server.leave_in_child()


def serve(figures: Figures, address: str, port: int, warn: Callable[[str], None]) -> _Server | None:
    """Serve /metrics in a thread. If the server cannot start, log a warning and return None."""
    try:
        import prometheus_client
    except ImportError as error:
        warn(
            f"HOROVOD_METRICS_PORT={port} needs the package prometheus_client, which cannot be imported ({error}); "
            "pip install 'horovod[metrics]'"
        )
        return None
    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector(figures))
    try:
        handler = type("_Handler", (HttpRequest, prometheus_client.MetricsHandler.factory(registry)), {})
        server = BoundedServer((address, port), handler, _MOST, name="hvd-metrics")
    except OSError as error:
        warn(f"no figures at HOROVOD_METRICS_PORT={port} on {address}: {error.strerror or error}; training goes on")
        return None
    return _Server(server)


class _Collector:
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> list[Any]:
        return []  # no statistics exist when prometheus_client first calls this method

    def collect(self) -> Iterator[Any]:
        return families(self._figures())


def families(job: dict[str, Any]) -> Iterator[Any]:
    """Convert a job's statistics to prometheus_client metric families."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    ranks = job["ranks"]

    def gauge(name: str, text: str, value: Callable[[Any], Any], kind: Any = GaugeMetricFamily) -> Any:
        family = kind(f"horovod_{name}", text, labels=["rank"])
        for rank in ranks:
            if value(rank) is not None:
                family.add_metric([str(rank["rank"])], value(rank))
        return family

    size = GaugeMetricFamily("horovod_workers", "Ranks of the job", value=job["size"])
    yield size
    yield gauge("steps", "Steps made", lambda r: r["made"], CounterMetricFamily)
    time = CounterMetricFamily(
        "horovod_step_seconds", "Where the time of steps went; hidden is beside the others", labels=["rank", "part"]
    )
    for rank in ranks:
        for part, name in _PARTS.items():
            if rank.get(name) is not None:
                time.add_metric([str(rank["rank"]), part], rank[name] * rank["steps"])
    yield time
    yield gauge(
        "reduced_bytes",
        "Bytes of tensors in collectives",
        lambda r: r["bytes"] * r["steps"] if r["steps"] else None,
        CounterMetricFamily,
    )
    yield gauge("paused_seconds", "Time between steps", lambda r: r["paused_seconds"], CounterMetricFamily)
    yield gauge("efficiency", "Share of a step that is not exposed communication", lambda r: r.get("efficiency"))
    yield gauge("bandwidth_bytes_per_second", "Within collectives", lambda r: r.get("bandwidth"))
    yield gauge("late_share", "Share of steps in which the rank came last", lambda r: r["late"]["share"])
    yield gauge("late_seconds", "By how much it came last then", lambda r: r["late"]["seconds"])
    reported = GaugeMetricFamily("horovod_reported", "Values of hvd.report", labels=["rank", "name"])
    for rank in ranks:
        for name, value in rank["reported"].items():
            reported.add_metric([str(rank["rank"]), name], value)
    yield reported
