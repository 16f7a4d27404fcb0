"""How the ranks of a job end: collects what they report and what the agents see, for the verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from horovod.common.contract import reasons
from horovod.runner.protocol.messages import Exited
from horovod.runner.verdict.verdict import RankEnd


class Endings:
    """`ends`: of those that have ended, in that order. `called`: ranks that have called hvd.init(); `pids`: their
    processes on their hosts."""

    def __init__(self, hosts: Mapping[int, str]) -> None:
        """`hosts`: of all ranks."""
        self._hosts = hosts
        self._endings: dict[int, reasons.Ending] = {}
        self._left: dict[int, str] = {}
        self._refused: set[int] = set()
        self._tails: Mapping[int, str] | None = None  # of stderr when the launcher began to stop the job
        self.ends: list[RankEnd] = []
        self.called: set[int] = set()
        self.pids: dict[int, int] = {}

    @property
    def stopping(self) -> bool:
        return self._tails is not None

    def stop(self, tails: Mapping[int, str]) -> None:
        """The launcher begins to stop the job, with these ends of the ranks' stderr."""
        if self._tails is None:
            self._tails = tails

    def hear(self, line: bytes) -> None:
        """A worker's report."""
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
        elif not self.stopping:  # later it may only be what the stop has caused
            self._endings[report.rank] = self._checked(report)

    def told(self) -> list[reasons.Ending]:
        """What ranks have reported of their ends, in that order."""
        return list(self._endings.values())

    def forget(self, ranks: Collection[int]) -> None:
        """Of these nobody will ask any more."""
        self.ends = [end for end in self.ends if end.rank not in ranks]
        for rank in ranks:
            self._endings.pop(rank, None)
            self._left.pop(rank, None)

    def suffers(self, rank: int) -> bool:
        """Has it reported that it ends only because something else has?"""
        ending = self._endings.get(rank)
        return ending is not None and ending.suffers

    def _checked(self, ending: reasons.Ending) -> reasons.Ending:
        """Whoever has called init by now is not absent, though it may have given up waiting."""
        ranks = [rank for rank in ending.ranks if rank in self._hosts]
        if ending.why == "absent":
            ranks = [rank for rank in ranks if rank not in self.called] or ranks
        return msgspec.structs.replace(ending, ranks=ranks)

    def end(self, report: Exited, tail: str) -> None:
        """A worker has ended; `tail`: the end of its stderr."""
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
