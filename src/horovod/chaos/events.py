"""Faults that can be injected into a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

HEAD_START = 0.5
"""Seconds between the announcement that a host will be cut off and the cut, so that other hosts learn of it."""


class Kind(Enum):
    """Kind of a fault; the value is its name in plans."""

    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP, later SIGCONT
    RAISE = "raise"  # an exception in the program
    EXIT = "exit"  # the program exits
    PREEMPT = "preempt"  # SIGTERM, as sent by clouds
    SLOW = "slow"  # packets between two ranks' hosts are delayed
    CUT = "cut"  # a host is disconnected from the network


@dataclass(frozen=True)
class Event:
    """Fault to inject into a job.

    Its target is one of ``rank``, ``host``, ``link`` or ``pick``. Its time is ``step`` or ``after``; without both, it
    happens at the beginning.

    Attributes:
        kind: Kind of the fault.
        rank: Target rank.
        host: Target host.
        link: Two ranks whose connection is the target.
        pick: Number from 0 to 1 that selects one of the ranks (or hosts) that exist when it happens.
        step: Step at whose beginning it happens.
        after: Seconds since the first epoch.
        lasts: Duration in seconds; None: forever.
        by: Seconds by which packets are delayed.
        code: Exit code.
    """

    kind: Kind
    rank: int | None = None
    host: str | None = None
    link: tuple[int, int] | None = None
    pick: float | None = None
    step: int | None = None
    after: float | None = None
    lasts: float | None = None
    by: float | None = None
    code: int | None = None

    def __str__(self) -> str:
        """Return the event in the form in which it is written in a plan; a picked target as its number from 0 to 1."""
        said = {
            "rank": self.rank,
            "host": self.host,
            "link": None if self.link is None else f"{self.link[0]}-{self.link[1]}",
            "pick": None if self.pick is None else f"{self.pick:.6f}",
            "code": self.code,
            "by": None if self.by is None else duration(self.by),
            "step": self.step,
            "after": None if self.after is None else duration(self.after),
            "for": None if self.lasts is None else duration(self.lasts),
        }
        return " ".join([self.kind.value, *(f"{name}={text}" for name, text in said.items() if text is not None)])

    def meets(self, there: int) -> int:
        """Return the index of the picked target among ``there`` ranks or hosts."""
        assert self.pick is not None
        return min(there - 1, int(self.pick * there))


def duration(seconds: float) -> str:
    """Return a time in the form in which it is written in a plan, with the largest suitable unit."""
    for unit, size in (("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)):
        if seconds >= size:
            return f"{seconds / size:.6g}{unit}"
    return f"{seconds / 0.001:.6g}ms"
