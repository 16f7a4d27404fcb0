"""Random events that are the same each time: they follow from the seed alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from horovod.chaos.events import Event, Kind

RANDOM_KINDS = (Kind.KILL, Kind.STOP, Kind.RAISE, Kind.EXIT, Kind.PREEMPT, Kind.CUT)
CHOICE = (*RANDOM_KINDS, Kind.SLOW)
"""What kinds= may name."""
STOPPED = (0.5, 30.0)  # s for which a rank is stopped, or its host cut off: less and more than heartbeats bear
DELAYS = (0.001, 0.1)  # s by which packets come later
_DIGITS = 6  # of times and picks, so that an event that is written down says the same


@dataclass(frozen=True)
class Seeded:
    """``mtbf``: mean s between two events; ``until``: s after which there are no more, None: they do not end.
    ``kinds``: those that were named; with none any of RANDOM_KINDS, but then hosts that would be cut off get no time
    for that, and are left alone."""

    seed: int
    mtbf: float
    kinds: tuple[Kind, ...] = ()
    until: float | None = None

    def events(self) -> Iterator[Event]:
        """In order of time; the distances are exponentially distributed."""
        drawn = random.Random(self.seed)
        kinds = self.kinds or RANDOM_KINDS
        timed = {Kind.STOP, *self.kinds} & {Kind.STOP, Kind.CUT, Kind.SLOW}
        at = 0.0
        while True:
            # Drawn alike for all kinds, so that another choice of kinds moves no event.
            wait, kind, pick, length = (drawn.random() for _ in range(4))
            at += -math.log(1.0 - wait) * self.mtbf
            if self.until is not None and at > self.until:
                return
            chosen = kinds[min(len(kinds) - 1, int(kind * len(kinds)))]
            yield Event(
                chosen,
                pick=round(pick, _DIGITS),
                after=round(at, _DIGITS),
                lasts=_between(STOPPED, length) if chosen in timed else None,
                by=_between(DELAYS, kind * len(kinds) % 1.0) if chosen is Kind.SLOW else None,
            )


def _between(bounds: tuple[float, float], part: float) -> float:
    low, high = bounds
    return round(low * math.pow(high / low, part), _DIGITS)
