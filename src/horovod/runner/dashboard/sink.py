"""Interface through which the launcher reports events of a job to the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.runner.base.job_result import JobResult


class DashboardSink:
    """Receiver of a job's events. This base class ignores all events, for jobs without a dashboard.

    No method blocks or raises an exception.
    """

    address = ""
    """URL of the dashboard; empty if there is none."""

    def phase(self, name: str) -> None:
        """Report the current phase of the launcher. Repeated calls with the same phase are allowed."""

    def started(self, pids: Sequence[tuple[int, int]]) -> None:
        """Report the processes that were started on a host, as (rank, pid) pairs."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Report data that a rank wrote to stdout (1) or stderr (2)."""

    def launcher_message(self, text: str) -> None:
        """Report a message that the launcher printed."""

    def worker_report(self, line: bytes) -> None:
        """Report a line that a worker sent to its agent."""

    def exited(self, rank: int, status: int, error: str) -> None:
        """Report that a worker has exited. The arguments are the fields of the `Exited` message."""

    def end(self, result: JobResult) -> None:
        """Report that the job has ended, wait briefly for pages to receive this, and stop serving."""

    def close(self) -> None:
        """Stop serving, even if the end of the job was never reported. Can be called repeatedly."""
