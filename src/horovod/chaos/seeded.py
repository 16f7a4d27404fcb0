"""Pseudorandom events, which depend only on the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from horovod.chaos.events import Event, Kind

RANDOM_KINDS = (Kind.KILL, Kind.STOP, Kind.RAISE, Kind.EXIT, Kind.PREEMPT, Kind.CUT)
CHOICE = (*RANDOM_KINDS, Kind.SLOW)
"""Kinds that kinds= may contain."""
# Range of seconds for which a rank is stopped or its host cut off: shorter and longer than heartbeat timeouts.
STOPPED = (0.5, 30.0)
DELAYS = (0.001, 0.1)  # range of packet delays in seconds
_DIGITS = 6  # digits of times and picks, so that the written form of an event is exact


@dataclass(frozen=True)
class Seeded:
    """Source of pseudorandom events.

    Attributes:
        seed: Seed of the generator.
        mtbf: Mean seconds between two events.
        kinds: Kinds to inject. If empty, any of RANDOM_KINDS; hosts that would be cut off then get no duration and are
            left alone.
        until: Seconds after which there are no more events; None: endless.
    """

    seed: int
    mtbf: float
    kinds: tuple[Kind, ...] = ()
    until: float | None = None

    def events(self) -> Iterator[Event]:
        """Yield events in order of time; the intervals are exponentially distributed."""
        drawn = random.Random(self.seed)
        kinds = self.kinds or RANDOM_KINDS
        timed = {Kind.STOP, *self.kinds} & {Kind.STOP, Kind.CUT, Kind.SLOW}
        at = 0.0
        while True:
            # The same draws for all kinds, so that another choice of kinds does not shift events.
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
