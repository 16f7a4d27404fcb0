"""Interface through which a job reports its events to the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.runner.base.job_result import JobResult


class DashboardSink:
    """Receiver of a job's events that ignores them all, for jobs without a dashboard. No call blocks or raises."""

    address = ""
    """Address of the dashboard; empty if there is none."""

    def phase(self, name: str) -> None:
        """Report the launcher's phase; may be repeated."""

    def started(self, pids: Sequence[tuple[int, int]]) -> None:
        """Report the ranks and pids of the processes started on a host."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Report output of a rank on stdout (1) or stderr (2)."""

    def launcher_message(self, text: str) -> None:
        """Report a message of the launcher."""

    def worker_report(self, line: bytes) -> None:
        """Pass on a worker's report, as it was received."""

    def exited(self, rank: int, status: int, error: str) -> None:
        """Report a worker's end; the arguments are those of the message ``Exited``."""

    def end(self, result: JobResult) -> None:
        """Report the end of the job, wait briefly for pages to receive it, and stop serving."""

    def close(self) -> None:
        """Stop serving, however the job has ended. Idempotent."""
