"""Heartbeats between the launcher and other hosts or processes, and detection of lost peers.

Callers pass all times (monotonic, seconds).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Who = TypeVar("Who", bound=Hashable)

# If the caller itself pauses for more than STUCK_SECONDS, peers are not blamed for silence in that time.
STUCK_SECONDS = 2.0


def silent(seconds: float) -> str:
    """Return the message that a peer was lost after `seconds` of silence."""
    why = "it is stopped, its machine is down or hangs, or the network to it is broken"
    return f"no message from it for {seconds:.0f} s; {why}"


class Heartbeats:
    """Timers for heartbeats. A peer is considered lost after `silence` seconds without a message. 0 means no limit."""

    def __init__(self, silence: float, now: float) -> None:
        self._silence = silence
        self._looked = now
        self.next_heartbeat = 0.0
        """Time at which the next heartbeat to the agents is due (monotonic, s)."""

    def is_due(self, now: float) -> bool:
        """Return True if a heartbeat must be sent now. Schedule the next one after a quarter of the silence limit."""
        if self._silence <= 0 or now < self.next_heartbeat:
            return False
        self.next_heartbeat = now + self._silence / 4
        return True

    def was_deaf(self, now: float, listening: bool) -> bool:
        """Return True if the caller could not read messages since the last call, so silence must be ignored."""
        gap = now - self._looked
        self._looked = now
        return not listening or gap > max(STUCK_SECONDS, self._silence / 2)

    def lost(self, now: float, last_heard: Mapping[Who, float]) -> dict[Who, float]:
        """Return the seconds of silence of each lost peer. `last_heard` has the time of each peer's last message."""
        return {host: now - at for host, at in last_heard.items() if 0 < self._silence <= now - at}

    def suspects(self, now: float, last_heard: Mapping[Who, float]) -> list[Who]:
        """Return the peers that have been silent for more than half of the limit."""
        return [host for host, at in last_heard.items() if now - at > self._silence / 2 > 0]
