"""Log of injected faults and their effects, as the launcher observes them, for `--chaos-report`.

Callers pass all times in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from horovod.chaos.events import AGAIN, HEAD_START, Event, Kind, Outcome, lines
from horovod.chaos.grammar import parse_time

_REPORT = re.compile(rb"chaos: (\w+)[^\n]*\n")
_AGAIN = re.compile(AGAIN.format(r"(\d{1,9})").encode() + rb"\n")
_LASTS = re.compile(rb" for=(\S+)")
_NOT_COUNTED = (b"(not done", b"(the other end")
# Seconds after the end of a fault up to which a failure is attributed to the fault
_LATE = 1.0
# Worker number of a fault that no longer affects any worker
_NOBODY = -1
_REST = 400  # Maximum number of bytes to keep of an incomplete line of output


class ChaosLog:
    """Log of injected faults, with the times at which each fault was detected and the job recovered.

    Before a rank injects a fault into itself, it announces the fault on stderr. A fault is detected when the rank's
    process exits, or when the epoch ends and the next epoch starts without the worker. The job has recovered when the
    next epoch is running. Faults without visible effect, such as a slow link or a short stop, are never detected or
    recovered. A new epoch that only adds workers does not count.
    """

    def __init__(self, planned: Iterable[Event] = ()) -> None:
        """Create a log. The report will list those `planned` faults that no rank announced."""
        self._silent = [str(event) for event in planned]
        # (affected worker, outcome of the fault) pairs
        self._outcomes: list[tuple[int, Outcome]] = []
        self._again: int | None = None  # Number of steps that ranks had to repeat, or None if unknown
        self._rests: dict[int, bytes] = {}
        # Number of the current epoch, or 0 if no epoch is running
        self._epoch = 0
        # Worker numbers of the last epoch's members
        self._members: frozenset[int] = frozenset()
        self._over: float | None = None  # Time when the last epoch ended, or None while an epoch is running

    def wrote(self, worker: int, data: bytes, now: float) -> None:
        """Record the faults that a worker has announced on stderr."""
        text = self._rests.pop(worker, b"") + data
        for match in _REPORT.finditer(text):
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

    def _strike(self, report: str) -> None:
        """Remove a fault from the planned faults that have not been announced.

        Do nothing if it was already removed, because both ranks of a slow link announce the same fault.
        """
        self._silent = [event for event in self._silent if report != event and not report.startswith(event + " (")]

    def _speaks(self, worker: int) -> None:
        """Record that a worker has written output, so it is no longer suspended by an injected SIGSTOP.

        A later exit of the worker is not attributed to this fault.
        """
        for place, (whose, outcome) in enumerate(self._outcomes):
            if whose == worker and outcome.event.kind is Kind.STOP:
                self._outcomes[place] = _NOBODY, outcome

    def failed(self, worker: int, now: float) -> None:
        """Record that a worker's process has failed."""
        self._rests.pop(worker, None)
        for place, (whose, outcome) in enumerate(self._outcomes):
            if whose == worker and outcome.detected is None and _is_on(outcome, now):
                self._outcomes[place] = whose, replace(outcome, detected=self._noticed(outcome, now))

    def epoch(self, running: int, now: float, members: Collection[int] = ()) -> None:
        """Record that epoch `running` is running with these workers. 0 means that no epoch is running."""
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
        """Return the time at which a fault was detected, which is the end of the epoch or `now`, whichever is earlier.

        A fault that suspends a rank counts as detected when the rank is killed.
        """
        if self._over is None or outcome.event.kind is Kind.STOP or outcome.at > self._over:
            return max(now, outcome.at)
        return self._over

    def _lost_with(self, worker: int, outcome: Outcome, new: frozenset[int]) -> bool:
        """Return True if the fault ended the last epoch and removed `worker` from it.

        A network cut also counts if the same workers form the next epoch, because the host can reconnect.
        """
        if self._over is None or outcome.event.kind is Kind.STOP or not _is_on(outcome, self._over):
            return False
        back = outcome.event.kind is Kind.CUT and new == self._members
        return back or worker in self._members - new

    def lines(self) -> list[str]:
        """Return the lines of the report. Call this at the end of the job."""
        made = lines([self._at_the_end(outcome) for _, outcome in self._outcomes], self._again)
        return [*made, *(f"chaos: has not happened: {event}" for event in self._silent)]

    def _at_the_end(self, outcome: Outcome) -> Outcome:
        """Return the final outcome of a fault.

        If no later epoch followed, the fault counts as detected when the last epoch ended.
        """
        if outcome.detected is not None or self._over is None or outcome.event.kind in (Kind.STOP, Kind.PREEMPT):
            return outcome
        return replace(outcome, detected=self._noticed(outcome, self._over)) if _is_on(outcome, self._over) else outcome


def _is_on(outcome: Outcome, now: float) -> bool:
    """Return True if the fault could have caused a failure at time `now`."""
    lasts = outcome.event.lasts
    return outcome.event.kind is not Kind.SLOW and (lasts is None or now <= outcome.at + lasts + _LATE)
