"""Log of injected faults as the launcher observes them, for `--chaos-report`. Pure: times are arguments (s)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from horovod.chaos.events import AGAIN, HEAD_START, Event, Kind, Outcome, lines
from horovod.chaos.grammar import parse_time

_SAID = re.compile(rb"chaos: (\w+)[^\n]*\n")
_AGAIN = re.compile(AGAIN.format(r"(\d{1,9})").encode() + rb"\n")
_LASTS = re.compile(rb" for=(\S+)")
_NOT_COUNTED = (b"(not done", b"(the other end")
_LATE = 1.0  # s after a fault's end during which a failure is still attributed to it
_NOBODY = -1  # worker number of a fault that no longer concerns a worker
_REST = 400  # maximum bytes kept of an incomplete line


class ChaosLog:
    """Injected faults, with the times at which each is detected and recovered from.

    A rank writes to stderr which fault it is about to inject into itself. The fault counts as detected when the rank's
    process ends, or when the epoch ends and the next one lacks the worker. It counts as recovered from when the next
    epoch runs. A fault that need not be noticed (a short stop or cut, a slow link) is neither, nor is a change of
    epochs that only adds workers.
    """

    def __init__(self, planned: Iterable[Event] = ()) -> None:
        """Create the log. `planned` faults were listed one by one; the report names those that no rank announced."""
        self._silent = [str(event) for event in planned]
        self._outcomes: list[tuple[int, Outcome]] = []  # with the worker that each fault concerns
        self._again: int | None = None  # steps that ranks report to have repeated
        self._rests: dict[int, bytes] = {}
        self._epoch = 0  # current epoch; 0 if none runs
        self._members: frozenset[int] = frozenset()  # workers of the last epoch
        self._over: float | None = None  # when the last epoch ended, until the next one runs

    def wrote(self, worker: int, data: bytes, now: float) -> None:
        """Take what the worker wrote to stderr."""
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
        """Remove a fault from those not announced; for a slow link, the rank at its other end announces it too."""
        self._silent = [event for event in self._silent if said != event and not said.startswith(event + " (")]

    def _speaks(self, worker: int) -> None:
        """Detach stop faults from a worker that writes: it runs again, so a later end has another cause."""
        for place, (whose, outcome) in enumerate(self._outcomes):
            if whose == worker and outcome.event.kind is Kind.STOP:
                self._outcomes[place] = _NOBODY, outcome

    def failed(self, worker: int, now: float) -> None:
        """Record that the worker's process has failed."""
        self._rests.pop(worker, None)
        for place, (whose, outcome) in enumerate(self._outcomes):
            if whose == worker and outcome.detected is None and _is_on(outcome, now):
                self._outcomes[place] = whose, replace(outcome, detected=self._noticed(outcome, now))

    def epoch(self, running: int, now: float, members: Collection[int] = ()) -> None:
        """Record that epoch `running` runs with these workers; 0 if none runs."""
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
        """Return when the fault was detected: the end of the epoch if that came first, but not for a stopped rank.

        A stopped rank is detected when it is killed.
        """
        if self._over is None or outcome.event.kind is Kind.STOP or outcome.at > self._over:
            return max(now, outcome.at)
        return self._over

    def _lost_with(self, worker: int, outcome: Outcome, new: frozenset[int]) -> bool:
        """Return True if the fault ended the last epoch, of which `worker` was a member.

        A host that was cut off may be a member again in the next epoch.
        """
        if self._over is None or outcome.event.kind is Kind.STOP or not _is_on(outcome, self._over):
            return False
        back = outcome.event.kind is Kind.CUT and new == self._members
        return back or worker in self._members - new

    def lines(self) -> list[str]:
        """Return the lines of the report, at the end of the job."""
        made = lines([self._at_the_end(outcome) for _, outcome in self._outcomes], self._again)
        return [*made, *(f"chaos: has not happened: {event}" for event in self._silent)]

    def _at_the_end(self, outcome: Outcome) -> Outcome:
        """Return the outcome; of an epoch after which no other came, it counts as detected when that epoch ended."""
        if outcome.detected is not None or self._over is None or outcome.event.kind in (Kind.STOP, Kind.PREEMPT):
            return outcome
        return replace(outcome, detected=self._noticed(outcome, self._over)) if _is_on(outcome, self._over) else outcome


def _is_on(outcome: Outcome, now: float) -> bool:
    """Return True if a failure at time `now` may be caused by this fault."""
    lasts = outcome.event.lasts
    return outcome.event.kind is not Kind.SLOW and (lasts is None or now <= outcome.at + lasts + _LATE)
