"""Limits of an elastic job, as set by the user, and hosts that get no new workers after a failure."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.elastic.actions import TORN_DOWN


@dataclass(frozen=True)
class Limits:
    """Limits of an elastic job.

    Attributes:
        start: Workers before the first epoch (-np).
        least: Fewest workers of an epoch.
        most: Most workers of an epoch; None means no limit.
        resets: How often the members may change; None means no limit.
        timeout: Seconds without a running epoch after which the job ends.
        patience: Seconds for a member to return from an epoch that is over; default half of `timeout`.
        gather: Seconds that workers of the first epoch wait for others that are starting; default as in later epochs.
        names: How messages name the values.
    """

    start: int
    least: int
    most: int | None = None
    resets: int | None = None
    timeout: float = 600.0
    patience: float | None = None
    gather: float | None = None
    names: Names = FLAGS

    def __post_init__(self) -> None:
        names = self.names
        if not 1 <= self.least <= self.start or (self.most is not None and self.most < self.start):
            most = "any number" if self.most is None else self.most
            raise ValueError(
                f"the sizes must be 1 <= {names.least} <= {names.start} <= {names.most}, got {names.least} "
                f"{self.least}, {names.start} {self.start} and {names.most} {most}"
            )
        if self.resets is not None and self.resets < 0:
            raise ValueError(f"{names.resets} must be 0 or more, got {self.resets}")
        if self.timeout <= 0:
            raise ValueError(f"{names.timeout} must be a number of seconds above 0, got {self.timeout:g}")

    @property
    def seconds_to_come_back(self) -> float:
        """Seconds for a member to return from an epoch that is over."""
        return self.timeout / 2 if self.patience is None else self.patience

    def has_room(self, size: int) -> bool:
        """Return True if an epoch may have more than `size` members."""
        return self.most is None or size < self.most


@dataclass
class Resets:
    """Count of changes of a job's members. `most` is the maximum, None for no limit."""

    most: int | None
    done: int = 0

    @property
    def used_up(self) -> bool:
        """True if the members may not change any more."""
        return self.most is not None and self.done >= self.most


# Hosts that get no new workers for a while because a worker failed there. Pure: times are arguments (monotonic, s).
#
# The first failure bars a host for the minimum of the range plus a random jitter of up to the same length. Each further
# failure doubles the time, up to the maximum of the range. Without a range the host is barred permanently. The jitter
# prevents hosts that failed together from returning together.

SHORTEST, LONGEST = 1, 3600
"""Limits of the range in seconds."""


def check_range(given: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the range unchanged. Raises ValueError naming the range and what is accepted."""
    if given is None:
        return None
    try:
        low, high = given
        fits = SHORTEST <= low <= high <= LONGEST
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"the blacklist's cooldown range must be two numbers of seconds from {SHORTEST} to {LONGEST}, MIN not "
            f"above MAX, got {given!r}"
        )
    return low, high


@dataclass
class _Failed:
    count: int = 0
    until: float = math.inf
    delay: float = 0.0


@dataclass
class Blacklist:
    """Hosts barred after failures. `cooldown` is (MIN, MAX) in seconds, None for no end; `seed` is the jitter's."""

    cooldown: tuple[float, float] | None = None
    seed: int | None = None
    _hosts: dict[str, _Failed] = field(default_factory=dict)
    _last: float = -math.inf  # time of the last failure

    def __post_init__(self) -> None:
        check_range(self.cooldown)
        self._random = random.Random(self.seed)

    def failed(self, host: str, now: float) -> float:
        """Record that a worker has failed on the host.

        Failures of several workers that ran there at the same time count once, because the host is already barred.

        Returns:
            Seconds for which the host is barred from now on; infinity if permanently.
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
        """Return True if the host gets no new workers now."""
        known = self._hosts.get(host)
        return known is not None and now < known.until

    def bars_for_ever(self, hosts: Collection[str], now: float) -> bool:
        """Return True if there are hosts but all of them are barred permanently."""
        return bool(hosts) and self.next_return(now) is None and all(self.bars(host, now) for host in hosts)

    def closes_at(self, hosts: Collection[str], full: bool, now: float) -> float:
        """Return the time from which on none of these hosts will ever get new workers, infinity if some may.

        If the hosts that are not barred have too few slots (`full`), no host can join them unless another one is lost.
        This is waited for.
        """
        if self.bars_for_ever(hosts, now):
            return -math.inf
        return self._last + TORN_DOWN if full and self.next_return(now) is None else math.inf

    def barred(self, hosts: Collection[str], now: float) -> list[str]:
        """Return those of the hosts that are barred now."""
        return [host for host in hosts if self.bars(host, now)]

    def usable(self, slots: Mapping[str, int], now: float) -> dict[str, int]:
        """Return the slots of the hosts that are not barred."""
        return {host: count for host, count in slots.items() if not self.bars(host, now)}

    def next_return(self, now: float) -> float | None:
        """Return when the next barred host becomes usable (monotonic, s), or None."""
        times = [known.until for known in self._hosts.values() if now < known.until < math.inf]
        return min(times, default=None)

    def next_time(self, now: float) -> float | None:
        """Return when the next barred host becomes usable, or when the result of `closes_at` becomes final."""
        times = [self.next_return(now), self._last + TORN_DOWN if now < self._last + TORN_DOWN else None]
        return min((at for at in times if at is not None), default=None)

    def postpone(self, seconds: float) -> None:
        """Extend the time after the last failure, since the launcher may not know yet which hosts were lost."""
        self._last += seconds
