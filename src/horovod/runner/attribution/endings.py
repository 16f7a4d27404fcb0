"""Ends of a job's ranks, collected from their reports and the agents' for the attribution."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from horovod.common.contract import reasons
from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.protocol.messages import Exited


class Endings:
    """Collected reports about how ranks ended.

    Attributes:
        ends: Ends of the ranks, in the order in which they ended.
        called: Ranks that have called hvd.init().
        pids: Their process ids on their hosts.
    """

    def __init__(self, hosts: Mapping[int, str]) -> None:
        """Create the collection. `hosts` maps each rank to its host."""
        self._hosts = hosts
        self._endings: dict[int, reasons.Ending] = {}
        self._left: dict[int, str] = {}
        self._refused: set[int] = set()
        self._tails: Mapping[int, str] | None = None  # ends of stderr when the launcher began to stop the job
        self.ends: list[RankEnd] = []
        self.called: set[int] = set()
        self.pids: dict[int, int] = {}

    @property
    def stopping(self) -> bool:
        """True once the launcher has begun to stop the job."""
        return self._tails is not None

    def stop(self, tails: Mapping[int, str]) -> None:
        """Record that the launcher begins to stop the job, and the ends of the ranks' stderr at that time."""
        if self._tails is None:
            self._tails = tails

    def hear(self, line: bytes) -> None:
        """Record a worker's report."""
        report = reasons.decode(line)
        if report is None or report.rank not in self._hosts:
            return
        if isinstance(report, reasons.Called):
            self.called.add(report.rank)
            self.pids[report.rank] = report.pid
        elif isinstance(report, reasons.Refused):
            self._refused.add(report.rank)
        elif isinstance(report, reasons.Left):
            self._left[report.rank] = report.reason
        elif not self.stopping:  # later reports may only be consequences of the stop
            self._endings[report.rank] = self._checked(report)

    def reports(self) -> list[reasons.Ending]:
        """Return the ranks' reports about their ends, in order."""
        return list(self._endings.values())

    def forget(self, ranks: Collection[int]) -> None:
        """Drop what is recorded about these ranks."""
        self.ends = [end for end in self.ends if end.rank not in ranks]
        for rank in ranks:
            self._endings.pop(rank, None)
            self._left.pop(rank, None)

    def suffers(self, rank: int) -> bool:
        """Return True if the rank reported that it ends only because another one did."""
        ending = self._endings.get(rank)
        return ending is not None and ending.suffers

    def _checked(self, ending: reasons.Ending) -> reasons.Ending:
        """Return the report without absent ranks that have called init meanwhile, perhaps before they gave up."""
        ranks = [rank for rank in ending.ranks if rank in self._hosts]
        if ending.why == "absent":
            ranks = [rank for rank in ranks if rank not in self.called] or ranks
        return msgspec.structs.replace(ending, ranks=ranks)

    def end(self, report: Exited, tail: str) -> None:
        """Record that a worker has ended. `tail` is the end of its stderr."""
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
                left=self._left.get(rank),
                refused=rank in self._refused,
            )
        )
