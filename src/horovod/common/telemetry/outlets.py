"""Exporters of step figures on rank 0: a file, a port for Prometheus, OpenTelemetry.

An exporter that cannot be opened, or fails, logs that once; training continues.
"""

import contextlib
import fcntl
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from horovod.common.contract import private_files
from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.telemetry.outlet import Figures, Outlet


def open_outlets(settings: Settings, figures: Figures) -> list[Outlet]:
    """Return the exporters that the settings ask for."""
    warn = warner(0, settings)
    made: list[Outlet] = []
    path = settings.text("HOROVOD_STATS_FILE")
    if path:
        made.append(LinesFile(path, figures, warn))
    port = settings.integer("HOROVOD_METRICS_PORT")
    if port:
        from horovod.common.telemetry import metrics

        server = metrics.serve(figures, settings.text("HOROVOD_METRICS_ADDRESS"), port, warn)
        if server is not None:
            made.append(server)
    if _telemetry_wanted():
        from horovod.common.telemetry import open_telemetry

        made.append(open_telemetry.Gauges(figures))
    return made


def _telemetry_wanted() -> bool:
    """Return True if the program uses OpenTelemetry or was started with variables that ask for it."""
    if "opentelemetry.metrics" in sys.modules:
        return True
    asked = any(name.startswith("OTEL_EXPORTER_OTLP") or name == "OTEL_METRICS_EXPORTER" for name in os.environ)
    return asked and importlib.util.find_spec("opentelemetry") is not None


def plain(value: Any) -> Any:
    """Return the value with numbers that JSON does not support, such as NaN, replaced by None."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


class LinesFile:
    """File of JSON lines, each with all figures at one time and ``time`` (seconds since 1970).

    Lines are appended to an existing regular file; symbolic links are not followed. If another job is writing the same
    file, nothing is written.
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
        except OSError:  # a file system without locks
            pass
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":  # its writer was killed in the middle of a line
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
            if written < len(data):  # the disk is full: leave no partial line
                os.ftruncate(self._file, size)
                raise OSError(28, "No space left on device")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # forked children share the lock and may outlive this process
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self.leave_in_child()

    def leave_in_child(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
