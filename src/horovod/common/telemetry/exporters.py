"""Exporters of step statistics on rank 0: a JSON file, a Prometheus port, OpenTelemetry, and TensorBoard scalars.

If an exporter cannot be opened or fails later, it logs one warning, and training continues.
"""

import contextlib
import fcntl
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from horovod.common.contract import private_files
from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings

if TYPE_CHECKING:
    from horovod._bounded_server import BoundedServer

Figures = Callable[[], dict[str, Any]]
"""Function that returns the result of ``Account.job``."""


class Exporter(Protocol):
    """Interface for exporters of step statistics."""

    def write(self) -> None:
        """Export the latest statistics. Never raises."""

    def close(self) -> None:
        """Close the exporter at the end of the job."""

    def leave_in_child(self) -> None:
        """Close inherited files and ports in a forked child."""


def open_exporters(settings: Settings, figures: Figures) -> list[Exporter]:
    """Open the exporters that the settings enable."""
    warn = warner(0, settings)
    opened: list[Exporter] = []
    path = settings.text("HOROVOD_STATS_FILE")
    if path:
        opened.append(LinesFile(path, figures, warn))
    port = settings.integer("HOROVOD_METRICS_PORT")
    if port:
        server = serve_metrics(figures, settings.text("HOROVOD_METRICS_ADDRESS"), port, warn)
        if server is not None:
            opened.append(server)
    if _is_telemetry_enabled():
        opened.append(Gauges(figures))
    return opened


def _is_telemetry_enabled() -> bool:
    """Return True if the program uses OpenTelemetry or environment variables enable it."""
    if "opentelemetry.metrics" in sys.modules:
        return True
    asked = any(name.startswith("OTEL_EXPORTER_OTLP") or name == "OTEL_METRICS_EXPORTER" for name in os.environ)
    return asked and importlib.util.find_spec("opentelemetry") is not None


def plain(value: Any) -> Any:
    """Replace numbers that JSON cannot represent, such as NaN, with None."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


class LinesFile:
    """Exporter to a file of JSON lines.

    Each line contains all statistics at one point in time, with ``time`` in seconds since 1970. The exporter
    appends to an existing regular file and does not follow symbolic links. It writes nothing if another job is writing
    to the same file.
    """

    def __init__(self, path: str, figures: Figures, warn: Callable[[str], None]) -> None:
        self._path, self._figures, self._warn = path, figures, warn
        self._file: int | None = None
        try:
            self._file = private_files.open_file(path, os.O_RDWR | os.O_APPEND, mode=0o644)
            self._lock()
        except BlockingIOError:
            self._give_up("another job is writing it", "")
        except OSError as error:
            self._give_up(error.strerror or str(error), "")

    def _lock(self) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # some file systems do not support locks
            pass
        size = os.fstat(self._file).st_size
        # Start a new line, in case an earlier writer was killed in the middle of one.
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def _give_up(self, why: str, more: str = "more ") -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._warn(f"no {more}figures in HOROVOD_STATS_FILE={self._path}: {why}")

    def write(self) -> None:
        if self._file is None:
            return
        line = json.dumps({"time": round(time.time(), 3), **plain(self._figures())}, separators=(",", ":"))
        data = line.encode() + b"\n"
        try:
            size = os.fstat(self._file).st_size
            written = os.write(self._file, data)
            if written < len(data):  # if the disk is full, remove the incomplete line
                os.ftruncate(self._file, size)
                raise OSError(28, "No space left on device")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def close(self) -> None:
        if self._file is not None:
            # Unlock explicitly, because forked children share the lock and can outlive this process.
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self.leave_in_child()

    def leave_in_child(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


# The HTTP endpoint below serves the statistics to Prometheus and other OpenMetrics readers. Each connection needs a
# descriptor and a thread, so their number is limited.
_MAX_CONNECTIONS = 16
_PARTS = {
    "data": "data_seconds",
    "compute": "compute_seconds",
    "exposed": "exposed_seconds",
    "hidden": "hidden_seconds",
    "all": "step_seconds",
}


class _MetricsPort:
    def __init__(self, server: "BoundedServer") -> None:
        self._server = server

    def write(self) -> None:
        pass

    def close(self) -> None:
        self._server.close()

    def leave_in_child(self) -> None:
        self._server.leave_in_child()


def serve_metrics(figures: Figures, address: str, port: int, warn: Callable[[str], None]) -> _MetricsPort | None:
    """Serve /metrics in a thread. If the server cannot start, log a warning and return None."""
    try:
        import prometheus_client
    except ImportError as error:
        warn(
            f"HOROVOD_METRICS_PORT={port} needs the package prometheus_client, which cannot be imported ({error}); "
            "pip install 'horovod[metrics]'"
        )
        return None
    from horovod._bounded_server import BoundedServer, HttpRequest  # imported here because it loads an HTTP server

    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector(figures))
    try:
        handler = type("_Handler", (HttpRequest, prometheus_client.MetricsHandler.factory(registry)), {})
        server = BoundedServer((address, port), handler, _MAX_CONNECTIONS, name="hvd-metrics")
    except OSError as error:
        warn(f"no figures at HOROVOD_METRICS_PORT={port} on {address}: {error.strerror or error}; training goes on")
        return None
    return _MetricsPort(server)


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


# Name, key in the statistics and unit of each OpenTelemetry gauge.
_GAUGES = (
    ("horovod.step.duration", "step_seconds", "s"),
    ("horovod.step.data", "data_seconds", "s"),
    ("horovod.step.exposed", "exposed_seconds", "s"),
    ("horovod.step.hidden", "hidden_seconds", "s"),
    ("horovod.efficiency", "efficiency", "1"),
    ("horovod.bandwidth", "bandwidth", "By/s"),
)
# Statistics of the current job, read by OpenTelemetry gauges that are created once per process.
_current: list[Figures] = []
_created = False


class Gauges:
    """Exporter that publishes statistics as OpenTelemetry gauges."""

    def __init__(self, figures: Figures) -> None:
        global _created
        _current[:] = [figures]
        if _created:
            return
        _created = True
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


# Maps a key of the statistics to the name of a scalar for writers such as TensorBoard's.
_SHOWN = {
    "step_seconds": "step_ms",
    "data_seconds": "data_ms",
    "compute_seconds": "compute_ms",
    "exposed_seconds": "exposed_ms",
    "hidden_seconds": "hidden_ms",
}


def scalars(stats: Mapping[str, Any]) -> dict[str, float]:
    """Extract the scalars from a result of ``hvd.stats()``. On rank 0, prefer the values for the last second."""
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
    """Write scalars to a writer such as TensorBoard's. See ``HorovodBasics.log_stats``."""
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
