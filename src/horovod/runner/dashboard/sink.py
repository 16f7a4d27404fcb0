"""Interface through which a job reports its events to the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.runner.base.job_result import JobResult


class DashboardSink:
    """Receiver of a job's events.

    This base class ignores them, for jobs without a dashboard. No call blocks or raises.
    """

    address = ""
    """URL of the dashboard; empty if there is none."""

    def phase(self, name: str) -> None:
        """Report the launcher's phase. Repeated calls are allowed."""

    def started(self, pids: Sequence[tuple[int, int]]) -> None:
        """Report the processes started on a host, as (rank, pid) pairs."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Report data that a rank wrote to stdout (1) or stderr (2)."""

    def launcher_message(self, text: str) -> None:
        """Report a message that the launcher printed."""

    def worker_report(self, line: bytes) -> None:
        """Pass on a report of a worker, unchanged."""

    def exited(self, rank: int, status: int, error: str) -> None:
        """Report that a worker has ended. The arguments are those of the message ``Exited``."""

    def end(self, result: JobResult) -> None:
        """Report the end of the job, wait briefly for pages to receive it, and stop serving."""

    def close(self) -> None:
        """Stop serving, regardless of how the job ended. Idempotent."""
