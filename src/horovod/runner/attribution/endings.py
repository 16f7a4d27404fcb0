"""Collected reports from ranks and agents about how the ranks of a job exited."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from horovod.common.contract import reasons
from horovod.runner.agent.messages import Exited
from horovod.runner.attribution.first_failure import RankEnd


class Endings:
    """Collection of reports about how the ranks of a job exited.

    Attributes:
        ends: One entry for each rank that has exited, in chronological order.
        called: Ranks that have called hvd.init().
        pids: Process ids of the ranks that have called hvd.init().
    """

    def __init__(self, hosts: Mapping[int, str]) -> None:
        """Create an empty collection. `hosts` contains the host of each rank."""
        self._hosts = hosts
        self._endings: dict[int, reasons.Ending] = {}
        self._departures: dict[int, str] = {}
        self._refused: set[int] = set()
        # Last stderr output of each rank when the launcher began to stop the job, or None before that.
        self._tails: Mapping[int, str] | None = None
        self.ends: list[RankEnd] = []
        self.called: set[int] = set()
        self.pids: dict[int, int] = {}

    @property
    def stopping(self) -> bool:
        """True if the launcher has begun to stop the job."""
        return self._tails is not None

    def stop(self, tails: Mapping[int, str]) -> None:
        """Record that the launcher has begun to stop the job. `tails` contains each rank's last stderr output."""
        if self._tails is None:
            self._tails = tails

    def record(self, line: bytes) -> None:
        """Record a report that a worker has sent."""
        report = reasons.decode(line)
        if report is None or report.rank not in self._hosts:
            return
        if isinstance(report, reasons.Called):
            self.called.add(report.rank)
            self.pids[report.rank] = report.pid
        elif isinstance(report, reasons.Refused):
            self._refused.add(report.rank)
        elif isinstance(report, reasons.Left):
            self._departures[report.rank] = report.reason
        # Ignore reports that arrive after the launcher began to stop the job, because the stop might have caused them.
        elif not self.stopping:
            self._endings[report.rank] = self._checked(report)

    def reports(self) -> list[reasons.Ending]:
        """Return the ranks' reports about why they exited, in order of arrival."""
        return list(self._endings.values())

    def forget(self, ranks: Collection[int]) -> None:
        """Remove all records about these ranks."""
        self.ends = [end for end in self.ends if end.rank not in ranks]
        for rank in ranks:
            self._endings.pop(rank, None)
            self._departures.pop(rank, None)

    def suffers(self, rank: int) -> bool:
        """Return True if the rank reported that it failed only because of another rank."""
        ending = self._endings.get(rank)
        return ending is not None and ending.suffers

    def _checked(self, ending: reasons.Ending) -> reasons.Ending:
        """Omit unknown ranks from a report, and ranks that have called hvd.init() since it was written."""
        ranks = [rank for rank in ending.ranks if rank in self._hosts]
        if ending.why == "absent":
            ranks = [rank for rank in ranks if rank not in self.called] or ranks
        return msgspec.structs.replace(ending, ranks=ranks)

    def end(self, report: Exited, tail: str) -> None:
        """Record the exit of a worker. `tail` is its last stderr output."""
        rank = report.rank
        self.ends.append(
            RankEnd(
                rank,
                self._hosts[rank],
                report.status,
                tail,
                stopped=self.stopping,
                tail_at_stop=None if self._tails is None else self._tails.get(rank),
                error=report.error,
                reason=self._endings.get(rank),
                departure=self._departures.get(rank),
                refused=rank in self._refused,
            )
        )
