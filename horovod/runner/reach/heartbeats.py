"""Signs of life between the launcher and other hosts, or processes of others: when one is due, and who has been silent
for too long.
Pure: times are arguments (monotonic, s)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Who = TypeVar("Who", bound=Hashable)

STUCK_SECONDS = 2.0  # a gap in our own loop that long says that we, not the agents, were silent


def silent(seconds: float) -> str:
    """What is said of who is lost, after so many seconds."""
    why = "it is stopped, its machine is down or hangs, or the network to it is broken"
    return f"nothing was heard from it for {seconds:.0f} s; {why}"


class Heartbeats:
    """`silence`: seconds without a word after which a host counts as lost; 0: never."""

    def __init__(self, silence: float, now: float) -> None:
        self._silence = silence
        self._looked = now
        self.next_word = 0.0
        """When the agents are to hear of us."""

    def is_due(self, now: float) -> bool:
        """Is it time for a word to all agents? Then the next is due a quarter of the silence later."""
        if self._silence <= 0 or now < self.next_word:
            return False
        self.next_word = now + self._silence / 4
        return True

    def was_deaf(self, now: float, listening: bool) -> bool:
        """Could we have heard nothing since the last call, whoever spoke? `listening` False: we did not want to."""
        gap = now - self._looked
        self._looked = now
        return not listening or gap > max(STUCK_SECONDS, self._silence / 2)

    def lost(self, now: float, heard: Mapping[Who, float]) -> dict[Who, float]:
        """Hosts that are lost, and for how long (s) they have been silent. `heard`: when each was heard last."""
        return {host: now - at for host, at in heard.items() if 0 < self._silence <= now - at}

    def suspects(self, now: float, heard: Mapping[Who, float]) -> list[Who]:
        """Hosts that have been silent for so long that they may be lost."""
        return [host for host, at in heard.items() if now - at > self._silence / 2 > 0]
