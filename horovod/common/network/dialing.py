"""Which of a peer's addresses to try when, and what came of it. Pure: it is told the time, and opens nothing.

The best address goes first and gets a head start; while it does not answer the next ones are tried beside it, so that
one that swallows everything costs a fraction of a second and not a timeout (the idea of RFC 8305).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

HEAD_START = 0.25  # seconds before the next address is tried as well
BUSY_HEAD_START = (
    2.0  # the same when the connection is made and only the answer is missing: the peer is there, but busy
)
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds before an address is tried again; doubles
_RECENT = 3.0

T = TypeVar("T")


@dataclass
class _Try(Generic[T]):
    where: T
    at: float
    """When it is due; meaningless while under way."""
    pause: float = FIRST_PAUSE
    under_way: bool = False
    connected: bool = False
    outcome: str = ""


class Dialer(Generic[T]):
    """The tries for one link. ``targets`` are whatever stands for an address; they have to differ."""

    def __init__(self, targets: Sequence[T], now: float) -> None:
        self._tries = [_Try(target, now + index * HEAD_START) for index, target in enumerate(targets)]
        self._begun = now
        self._contact = float("-inf")  # when somebody took a connection and kept it, but did not answer

    def due(self, now: float) -> list[T]:
        """Targets to be tried now; each has to be reported back to ``failed``, unless the link is made."""
        ready = [each for each in self._tries if not each.under_way and each.at <= now]
        for each in ready:
            each.under_way = True
        return [each.where for each in ready]

    def next_due(self) -> float:
        """When ``due`` has something next, if nothing happens before; infinity when everything is under way."""
        return min((each.at for each in self._tries if not each.under_way), default=float("inf"))

    def connected(self, target: T, now: float) -> None:
        """The connection is made, the handshake under way."""
        self._find(target).connected = True
        for each in self._untried():
            each.at = max(each.at, now + BUSY_HEAD_START)

    def failed(self, target: T, outcome: str, now: float, silent: bool = False) -> None:
        """``outcome``: a few words for messages. ``silent``: nobody refused, it only took too long."""
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
        """Whether for ``patience`` seconds no address has led to somebody who might be the peer."""
        waiting = any(each.connected for each in self._tries) or now - self._contact < _RECENT or bool(self._untried())
        return now - self._begun >= patience and not waiting

    def outcomes(self) -> list[tuple[T, str]]:
        """(target, what came of it last), in order."""
        return [(each.where, each.outcome or _pending(each)) for each in self._tries]

    def _untried(self) -> list[_Try[T]]:
        return [each for each in self._tries if not each.under_way and not each.outcome]

    def _find(self, target: T) -> _Try[T]:
        return next(each for each in self._tries if each.where == target)


def _pending(each: _Try[T]) -> str:
    if each.connected:
        return "connected, but no answer"
    return "no answer" if each.under_way else "not tried"
