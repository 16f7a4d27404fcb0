"""The states of an elastic job, and how long is waited in them. What leads from one to the next: `membership`.

STARTING ---all that were started wait, np at least---> FORMING --all have connected--> RUNNING
                                                         ^   |                           |
                 all members are back or gone, and there |   | one fails, one comes back |
                 are min_np with who has come meanwhile  |   v                           v
                                                        GATHERING <----------------------'
a worker ends with success: FINISHING, until the last one has ended
nobody holds the state any more, too many resets, no epoch for the elastic timeout: ENDED
"""

from __future__ import annotations

import math
from enum import Enum

ACCUSED = 2.0  # s for a rank that others have lost to say that it lives: what engines promise their callers
TOGETHER = 5.0  # s for which who is ready waits for others that start, so that the members pause once
LEAVING = 10.0  # s for a worker that has no place any more to end
CERTAIN = 10.0  # s after SIGKILL: what the kernel cannot end is taken for gone
TORN_DOWN = 10.0  # s after a failure for its host to be found lost: what shuts a machine down may end a rank first
STOOD_STILL = 5.0  # s after the time at which the launcher wished to go on: it was stopped, or its machine was


class Phase(Enum):
    STARTING = "starting"
    FORMING = "forming"
    RUNNING = "running"
    GATHERING = "gathering"
    FINISHING = "finishing"
    ENDED = "ended"


class Standstill:
    """Has the launcher itself stood still (`kill -STOP`, a machine that sleeps)? Then nobody else is late. Pure: times
    are arguments (monotonic, s)."""

    def __init__(self, now: float) -> None:
        self._looked = now
        self._due = math.inf

    def waits(self, until: float | None) -> None:
        """The launcher's loop goes on at this time, or earlier; None: whenever something happens.

        A time that has passed means at once, counted from the last look: the loop may have been stopped since then.
        """
        self._due = math.inf if until is None else max(until, self._looked)

    def look(self, now: float) -> float:
        """For how long, s, it has stood still since the last call, at most: from that time on."""
        since, self._looked = self._looked, now
        return now - since if now > self._due + STOOD_STILL else 0.0
