"""What can happen to a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

HEAD_START = 0.5
"""s that a host is not cut off yet after a rank has said that it will be, so that others hear of it."""


class Kind(Enum):
    """The value is the word for it."""

    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP, and SIGCONT some time later
    RAISE = "raise"  # an exception of the program's own
    EXIT = "exit"  # the program ends by itself
    PREEMPT = "preempt"  # SIGTERM, as clouds send it
    SLOW = "slow"  # the packets between two ranks' hosts come later
    CUT = "cut"  # a host's cable is pulled


@dataclass(frozen=True)
class Event:
    """One fault.

    To whom: ``rank``, ``host``, ``link`` (two ranks), or ``pick``: from 0 to 1, the part of the ranks (or hosts) that
    there are when it happens. When: at the beginning of ``step``, or ``after`` s, from the first epoch on; with neither
    from the beginning. ``lasts``: s, None: for ever. ``by``: s by which packets come later. ``code``: of an exit.
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
        """As it is written; a picked one as the part of the ranks."""
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
        """Which of so many ranks, or hosts, in their order, a picked event is for."""
        assert self.pick is not None
        return min(there - 1, int(self.pick * there))


def duration(seconds: float) -> str:
    """As it is written: the shortest form that says the same."""
    for unit, size in (("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)):
        if seconds >= size:
            return f"{seconds / size:.6g}{unit}"
    return f"{seconds / 0.001:.6g}ms"
