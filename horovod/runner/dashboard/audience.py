"""Who is told what happens in a job, beside the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.runner.base.job_result import JobResult


class Audience:
    """Nobody, unless somebody wants to see the live page. No call waits or raises."""

    address = ""
    """Where the page is."""

    def phase(self, name: str) -> None:
        """How far the launcher is, in a word; may be told again and again."""

    def started(self, pids: Sequence[tuple[int, int]]) -> None:
        """Processes of a host, by rank."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """A piece of what a rank prints on stdout (1) or stderr (2)."""

    def said(self, text: str) -> None:
        """Words of the launcher."""

    def heard(self, line: bytes) -> None:
        """A worker's report."""

    def exited(self, rank: int, status: int, error: str) -> None:
        """As in ``Exited``."""

    def end(self, result: JobResult) -> None:
        """The job is over; all that is on the way to pages goes there, for a moment at most, and nothing is served any
        more."""

    def close(self) -> None:
        """Nothing is served any more, whatever has become of the job. May be called again."""
