"""Limits of an elastic job that the user sets, and hosts that are excluded after a failure."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.elastic.actions import TORN_DOWN


@dataclass(frozen=True)
class Limits:
    """Limits of an elastic job that the user sets.

    Attributes:
        start: Workers needed to form the first epoch (-np).
        least: Minimum number of workers in an epoch.
        most: Maximum number of workers in an epoch; None means no limit.
        resets: Number of times the members may change; None means no limit.
        timeout: Seconds without a running epoch after which the job ends.
        patience: Seconds for a member to return from an epoch that is over; by default half of `timeout`.
        gather: Seconds for which workers of the first epoch wait for others that are starting; by default as in later
            ones.
        names: Names of these values in messages.
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
        """Seconds that a member has to return from an epoch that is over."""
        return self.timeout / 2 if self.patience is None else self.patience

    def has_room(self, size: int) -> bool:
        """Return True if an epoch may have more than `size` members."""
        return self.most is None or size < self.most


@dataclass
class Resets:
    """Counter for changes of a job's members. `most` is the maximum; None means no limit."""

    most: int | None
    done: int = 0

    @property
    def used_up(self) -> bool:
        """True if no further change of members is allowed."""
        return self.most is not None and self.done >= self.most


# Hosts that get no new workers during a cooldown, after a worker failed there. The caller passes all times (monotonic,
# s).
#
# The first failure excludes a host for the minimum of the range plus a random jitter of at most the same length. Each
# further failure doubles the time, up to the maximum of the range. Without a range, the host is excluded permanently.
# The jitter prevents hosts that failed together from returning together.

SHORTEST, LONGEST = 1, 3600
"""Smallest and largest accepted value of the range in seconds."""


def check_range(given: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the range unchanged. Raises ValueError with the range and the accepted values if it is invalid."""
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
    """Hosts excluded after failures.

    `cooldown` is (MIN, MAX) in seconds, None for permanently; `seed` is for the jitter.
    """

    cooldown: tuple[float, float] | None = None
    seed: int | None = None
    _hosts: dict[str, _Failed] = field(default_factory=dict)
    _last: float = -math.inf  # time of the last failure on any host

    def __post_init__(self) -> None:
        check_range(self.cooldown)
        self._random = random.Random(self.seed)

    def failed(self, host: str, now: float) -> float:
        """Record that a worker has failed on the host, and exclude the host.

        Failures of several workers there at the same time count once, because the host is already excluded.

        Returns:
            Seconds from now for which the host is excluded; infinity if permanently.
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
        """Return True if the host is excluded now."""
        known = self._hosts.get(host)
        return known is not None and now < known.until

    def bars_for_ever(self, hosts: Collection[str], now: float) -> bool:
        """Return True if there are hosts and all of them are excluded permanently."""
        return bool(hosts) and self.next_return(now) is None and all(self.bars(host, now) for host in hosts)

    def closes_at(self, hosts: Collection[str], full: bool, now: float) -> float:
        """Return the time after which none of these hosts can get new workers; infinity if some still can.

        `full` is True if the hosts that are not excluded have too few slots. A lost host would make room for others, so
        the result is then TORN_DOWN seconds after the last failure, when all lost hosts are known.
        """
        if self.bars_for_ever(hosts, now):
            return -math.inf
        return self._last + TORN_DOWN if full and self.next_return(now) is None else math.inf

    def barred(self, hosts: Collection[str], now: float) -> list[str]:
        """Return the hosts among these that are excluded now."""
        return [host for host in hosts if self.bars(host, now)]

    def usable(self, slots: Mapping[str, int], now: float) -> dict[str, int]:
        """Return the slots of the hosts that are not excluded."""
        return {host: count for host, count in slots.items() if not self.bars(host, now)}

    def next_return(self, now: float) -> float | None:
        """Return the time at which the next excluded host becomes usable (monotonic, s), or None."""
        times = [known.until for known in self._hosts.values() if now < known.until < math.inf]
        return min(times, default=None)

    def next_time(self, now: float) -> float | None:
        """Return the time at which the next excluded host becomes usable, or at which all lost hosts are known."""
        times = [self.next_return(now), self._last + TORN_DOWN if now < self._last + TORN_DOWN else None]
        return min((at for at in times if at is not None), default=None)

    def postpone(self, seconds: float) -> None:
        """Extend the time after the last failure, because the launcher may not know yet which hosts are lost."""
        self._last += seconds
