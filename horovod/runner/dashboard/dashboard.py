"""The live page of a job: what happens, folded into a state by the launcher's loop, served from threads of its own."""

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
from horovod.runner.dashboard.audience import Audience
from horovod.runner.dashboard.server import HOST, Server
from horovod.runner.dashboard.state import State
from horovod.runner.plan.settings import LaunchSettings

_LAST_WORD = 2.0  # s for pages to take how the job has ended


class Dashboard(Audience):
    """Serves from the start to the end."""

    def __init__(self, settings: LaunchSettings) -> None:
        """Raises LaunchError naming a port that cannot be had."""
        self._began = time.monotonic()
        self._lock = threading.Lock()  # the state
        self._phase = ""
        self._state = State(shlex.join(settings.whole_command), settings.slots)
        port = settings.dashboard or 0
        try:
            self._server = Server(port, self._changes)
        except (OSError, OverflowError) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            what = f"--dashboard-port (HOROVOD_DASHBOARD_PORT) is {port}, which cannot be had on {HOST}: {why}"
            raise LaunchError(f"{what}; accepted is one that is free, or 0 for any") from None
        self.address = self._server.address

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _changes(self, version: int) -> tuple[int, bytes]:
        """For a page, in its thread. What takes time is done without the lock, for which the launcher's loop waits."""
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

    def said(self, text: str) -> None:
        with self._lock:
            self._state.said(text)

    def heard(self, line: bytes) -> None:
        with self._lock:
            self._state.heard(line, self._now())

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
