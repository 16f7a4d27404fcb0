"""Which hosts get no new workers for a while, because one has failed there. Pure: times are arguments (monotonic, s).

The first failure keeps a host away for the shorter end of the range plus a jitter of up to as much again, each further
one for twice as long as the one before, and never for longer than the longer end. Without a range it is for ever. The
jitter keeps hosts that failed together from coming back together, which would be a change of members for each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from horovod.runner.elastic.phases import TORN_DOWN

SHORTEST, LONGEST = 1, 3600
"""s: what a range may be made of."""


def check_range(given: tuple[float, float] | None) -> tuple[float, float] | None:
    """The range as it was given. Raises ValueError naming it and what is accepted."""
    if given is None:
        return None
    text = f"the blacklist's cooldown range is {given!r}, accepted are two numbers of seconds, MIN and MAX, "
    try:
        low, high = given
        fits = SHORTEST <= low <= high <= LONGEST
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"{text}from {SHORTEST} to {LONGEST}, MIN not above MAX")
    return low, high


@dataclass
class _Failed:
    count: int = 0
    until: float = math.inf
    delay: float = 0.0


@dataclass
class Blacklist:
    """`cooldown`: (MIN, MAX) in s, None: for ever. `seed`: of the jitter."""

    cooldown: tuple[float, float] | None = None
    seed: int | None = None
    _hosts: dict[str, _Failed] = field(default_factory=dict)
    _last: float = -math.inf  # when one has failed

    def __post_init__(self) -> None:
        check_range(self.cooldown)
        self._random = random.Random(self.seed)

    def failed(self, host: str, now: float) -> float:
        """A worker has failed there. Returns for how long the host stays away from now on (s; infinity: for ever).

        Several failures of workers that were there at the same time count once: the host is away already.
        """
        self._last = now
        known = self._hosts.setdefault(host, _Failed())
        if known.count and now < known.until:
            return known.until - now
        known.count += 1
        if self.cooldown is None:
            known.until = math.inf
            return math.inf
        low, high = self.cooldown
        known.delay = low + self._random.random() * low if known.count == 1 else 2 * known.delay
        known.delay = min(known.delay, high)
        known.until = now + known.delay
        return known.delay

    def bars(self, host: str, now: float) -> bool:
        """Does it get no new workers now?"""
        known = self._hosts.get(host)
        return known is not None and now < known.until

    def bars_for_ever(self, hosts: Collection[str], now: float) -> bool:
        """Are there hosts, and will none of them ever get new workers?"""
        return bool(hosts) and self.next_return(now) is None and all(self.bars(host, now) for host in hosts)

    def closes_at(self, hosts: Collection[str], full: bool, now: float) -> float:
        """From when on it counts that none of these will ever get new workers (infinity: some may). `full`: those that
        are not barred have too little room, and no other joins them unless one is lost; so that is waited for."""
        if self.bars_for_ever(hosts, now):
            return -math.inf
        return self._last + TORN_DOWN if full and self.next_return(now) is None else math.inf

    def barred(self, hosts: Collection[str], now: float) -> list[str]:
        """Those of these hosts that get no new workers now."""
        return [host for host in hosts if self.bars(host, now)]

    def usable(self, slots: Mapping[str, int], now: float) -> dict[str, int]:
        """Of these slots by host, those that new workers may have."""
        return {host: count for host, count in slots.items() if not self.bars(host, now)}

    def next_return(self, now: float) -> float | None:
        """When the next one comes back (monotonic, s); None: none does."""
        times = [known.until for known in self._hosts.values() if now < known.until < math.inf]
        return min(times, default=None)

    def next_time(self, now: float) -> float | None:
        """When the next one comes back, or `closes_at` is due."""
        times = [self.next_return(now), self._last + TORN_DOWN if now < self._last + TORN_DOWN else None]
        return min((at for at in times if at is not None), default=None)

    def postpone(self, seconds: float) -> None:
        """Nobody has looked for so long, so what is lost since the last failure may not be known yet."""
        self._last += seconds
