"""Dashboard of a job: the launcher's loop updates its state, and threads serve it."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Sequence

import msgspec

from horovod.runner.base.errors import LaunchError
from horovod.runner.base.exit_status import describe_status
from horovod.runner.base.job_result import JobResult
from horovod.runner.dashboard.server import HOST, Server
from horovod.runner.dashboard.sink import DashboardSink
from horovod.runner.dashboard.state import State
from horovod.runner.plan.settings import LaunchSettings

_LAST_WORD = 2.0  # s for pages to receive the job's end


class Dashboard(DashboardSink):
    """Dashboard that is served from the job's start to its end."""

    def __init__(self, settings: LaunchSettings) -> None:
        """Start to serve. Raises LaunchError naming the port if it cannot be used."""
        self._began = time.monotonic()
        self._lock = threading.Lock()  # the state
        self._phase = ""
        self._state = State(shlex.join(settings.whole_command), settings.slots)
        port = settings.dashboard or 0
        try:
            self._server = Server(port, self._changes)
        except (OSError, OverflowError) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            raise LaunchError(
                f"--dashboard-port (HOROVOD_DASHBOARD_PORT) must be a free port of {HOST}, got {port}: {why}; give "
                "another one, or 0 for any"
            ) from None
        self.address = self._server.address

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _changes(self, version: int) -> tuple[int, bytes]:
        """Return the changes for a page, in its thread. Encodes outside the lock, which the launcher's loop needs."""
        with self._lock:
            changes = self._state.since(version, self._now())
        return changes["version"], msgspec.json.encode(changes)

    def phase(self, name: str) -> None:
        if name != self._phase:
            self._phase = name
            with self._lock:
                self._state.phase(name)

    def started(self, pids: Sequence[tuple[int, int]]) -> None:
        with self._lock:
            for rank, pid in pids:
                self._state.started(rank, pid)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        with self._lock:
            self._state.output(rank, stream, data)

    def launcher_message(self, text: str) -> None:
        with self._lock:
            self._state.add_message(text)

    def worker_report(self, line: bytes) -> None:
        with self._lock:
            self._state.add_report(line, self._now())

    def exited(self, rank: int, status: int, error: str) -> None:
        with self._lock:
            self._state.exited(rank, error or describe_status(status), failed=status != 0)

    def end(self, result: JobResult) -> None:
        stopped = signal.Signals(result.stopped_by).name if result.stopped_by else ""
        with self._lock:
            self._state.end(result.exit_code, result.message, result.failed_rank, self._now(), stopped)
        self._server.finish(_LAST_WORD)
        self.close()

    def close(self) -> None:
        self._server.close()
