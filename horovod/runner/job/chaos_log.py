"""What comes of faults on purpose, as the launcher sees it, for `--chaos-report`. Pure: times are arguments (s)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from horovod.chaos.events import HEAD_START, Event, Kind
from horovod.chaos.grammar import parse_time
from horovod.chaos.report import AGAIN, Outcome, lines

_SAID = re.compile(rb"chaos: (\w+)[^\n]*\n")
_AGAIN = re.compile(AGAIN.format(r"(\d{1,9})").encode() + rb"\n")
_LASTS = re.compile(rb" for=(\S+)")
_NOT_COUNTED = (b"(not done", b"(the other end")
_LATE = 1.0  # s: who is back for so long has not been missed
_NOBODY = -1  # no worker
_REST = 400  # bytes of a line that has not come to its end yet


class ChaosLog:
    """A rank says on stderr what it is about to do to itself. It is noticed when its process ends, or the epoch if the
    worker is lost with it, and recovered from when the next epoch runs. What nobody has to notice, a short stop or cut,
    a slow link, is neither; nor is what an epoch follows that only lets others in."""

    def __init__(self, planned: Iterable[Event] = ()) -> None:
        """`planned`: those that were written down one by one; what no rank has spoken of is named at the end."""
        self._silent = [str(event) for event in planned]
        self._outcomes: list[tuple[int, Outcome]] = []  # with the worker that each is about
        self._again: int | None = None  # steps that ranks have done again, as they say
        self._rests: dict[int, bytes] = {}
        self._epoch = 0  # that runs, 0: none
        self._members: frozenset[int] = frozenset()  # of the last that ran
        self._over: float | None = None  # when that one ended, while no other runs

    def wrote(self, worker: int, data: bytes, now: float) -> None:
        """On stderr."""
        text = self._rests.pop(worker, b"") + data
        for match in _SAID.finditer(text):
            self._strike(match[0].decode(errors="replace").removeprefix("chaos: ").rstrip())
            kind = next((kind for kind in Kind if kind.value.encode() == match[1]), None)
            if kind is not None and not any(words in match[0] for words in _NOT_COUNTED):
                self._speaks(worker)
                lasts = _LASTS.search(match[0])
                event = Event(kind, lasts=parse_time(lasts[1].decode(errors="replace")) if lasts else None)
                self._outcomes.append((worker, Outcome(event, now + (HEAD_START if kind is Kind.CUT else 0.0))))
        for match in _AGAIN.finditer(text):
            self._again = (self._again or 0) + int(match[1])
        rest = text.rpartition(b"\n")[2][-_REST:]
        if rest:
            self._rests[worker] = rest

    def _strike(self, said: str) -> None:
        """Another end of a slow link speaks of it, too."""
        self._silent = [event for event in self._silent if said != event and not said.startswith(event + " (")]

    def _speaks(self, worker: int) -> None:
        """So it is not stopped any more, and what ends it later is something else."""
        for place, (whose, outcome) in enumerate(self._outcomes):
            if whose == worker and outcome.event.kind is Kind.STOP:
                self._outcomes[place] = _NOBODY, outcome

    def failed(self, worker: int, now: float) -> None:
        """Its process has ended, and not well."""
        self._rests.pop(worker, None)
        for place, (whose, outcome) in enumerate(self._outcomes):
            if whose == worker and outcome.detected is None and _is_on(outcome, now):
                self._outcomes[place] = whose, replace(outcome, detected=self._noticed(outcome, now))

    def epoch(self, running: int, now: float, members: Collection[int] = ()) -> None:
        """The number of the one that runs, and its workers; 0: none does."""
        if running == self._epoch:
            return
        if self._epoch:
            self._over = now
        self._epoch = running
        if not running:
            return
        new = frozenset(members)
        for place, (whose, outcome) in enumerate(self._outcomes):
            if outcome.detected is None and self._lost_with(whose, outcome, new):
                outcome = replace(outcome, detected=self._noticed(outcome, now))
            if outcome.detected is not None and outcome.recovered is None:
                outcome = replace(outcome, recovered=now)
            self._outcomes[place] = whose, outcome
        self._members, self._over = new, None

    def _noticed(self, outcome: Outcome, now: float) -> float:
        """When: the end of the epoch may have come before. What a stopped rank ends is noticed when it is killed."""
        if self._over is None or outcome.event.kind is Kind.STOP or outcome.at > self._over:
            return max(now, outcome.at)
        return self._over

    def _lost_with(self, worker: int, outcome: Outcome, new: frozenset[int]) -> bool:
        """Is it why the last epoch ended that had this worker? A host that is cut off may be back in the next one."""
        if self._over is None or outcome.event.kind is Kind.STOP or not _is_on(outcome, self._over):
            return False
        back = outcome.event.kind is Kind.CUT and new == self._members
        return back or worker in self._members - new

    def lines(self) -> list[str]:
        """The report, at the end of the job."""
        made = lines([self._at_the_end(outcome) for _, outcome in self._outcomes], self._again)
        return [*made, *(f"chaos: has not happened: {event}" for event in self._silent)]

    def _at_the_end(self, outcome: Outcome) -> Outcome:
        """Of a job that has lost its last epoch, no other tells who was lost with it."""
        if outcome.detected is not None or self._over is None or outcome.event.kind in (Kind.STOP, Kind.PREEMPT):
            return outcome
        return replace(outcome, detected=self._noticed(outcome, self._over)) if _is_on(outcome, self._over) else outcome


def _is_on(outcome: Outcome, now: float) -> bool:
    """May what fails now fail by it?"""
    lasts = outcome.event.lasts
    return outcome.event.kind is not Kind.SLOW and (lasts is None or now <= outcome.at + lasts + _LATE)
