"""Schedule of connection attempts to a peer's addresses. Pure: callers pass the time and make the connections.

The best address is tried first and gets a head start. While it does not answer, the next ones are tried in parallel, so
that an unresponsive address costs a fraction of a second instead of a timeout (the idea of RFC 8305).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

HEAD_START = 0.25  # seconds before the next address is tried as well
BUSY_HEAD_START = (
    2.0  # the same if a connection is established and only the answer is missing, because the peer is probably busy
)
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds before an address is tried again; doubles each time
_RECENT = 3.0

T = TypeVar("T")


@dataclass
class _Try(Generic[T]):
    where: T
    at: float
    """Time at which it is due; unused while under way."""
    pause: float = FIRST_PAUSE
    under_way: bool = False
    connected: bool = False
    outcome: str = ""


class Dialer(Generic[T]):
    """Connection attempts for one link. ``targets``: addresses in any form; must be distinct."""

    def __init__(self, targets: Sequence[T], now: float) -> None:
        self._tries = [_Try(target, now + index * HEAD_START) for index, target in enumerate(targets)]
        self._begun = now
        self._contact = float("-inf")  # time at which a peer last kept a connection but did not answer

    def due(self, now: float) -> list[T]:
        """Return the targets to try now. Report each to ``failed`` unless it becomes the link."""
        ready = [each for each in self._tries if not each.under_way and each.at <= now]
        for each in ready:
            each.under_way = True
        return [each.where for each in ready]

    def next_due(self) -> float:
        """Return when ``due`` will have something next; infinity if all attempts are under way."""
        return min((each.at for each in self._tries if not each.under_way), default=float("inf"))

    def connected(self, target: T, now: float) -> None:
        """Record that a target is connected and the handshake has started."""
        self._find(target).connected = True
        for each in self._untried():
            each.at = max(each.at, now + BUSY_HEAD_START)

    def failed(self, target: T, outcome: str, now: float, silent: bool = False) -> None:
        """Record a failed attempt to connect.

        Args:
            target: The target.
            outcome: A few words for messages.
            now: Current time.
            silent: True if it timed out without being refused.
        """
        this = self._find(target)
        if this.connected and silent:
            self._contact = now
        this.under_way = this.connected = False
        this.outcome = outcome
        this.at = now + this.pause
        this.pause = min(2 * this.pause, LONGEST_PAUSE)
        for each in self._untried()[:1]:
            each.at = min(each.at, now)

    def hopeless(self, now: float, patience: float) -> bool:
        """Return True if for ``patience`` seconds no address has led to a process that may be the peer."""
        waiting = any(each.connected for each in self._tries) or now - self._contact < _RECENT or bool(self._untried())
        return now - self._begun >= patience and not waiting

    def outcomes(self) -> list[tuple[T, str]]:
        """Return (target, last outcome) in order."""
        return [(each.where, each.outcome or _pending(each)) for each in self._tries]

    def _untried(self) -> list[_Try[T]]:
        return [each for each in self._tries if not each.under_way and not each.outcome]

    def _find(self, target: T) -> _Try[T]:
        return next(each for each in self._tries if each.where == target)


def _pending(each: _Try[T]) -> str:
    if each.connected:
        return "connected, but no answer"
    return "no answer" if each.under_way else "not tried"
