"""Limits that the user sets for an elastic job, and exclusion of hosts on which workers have failed."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.elastic.actions import TORN_DOWN


@dataclass(frozen=True)
class Limits:
    """Limits that the user sets for an elastic job.

    Attributes:
        start: Number of workers needed to form the first epoch (-np).
        least: Minimum number of workers in an epoch.
        most: Maximum number of workers in an epoch, or None for no limit.
        resets: Maximum number of changes of the members, or None for no limit.
        timeout: Seconds without a running epoch after which the job ends.
        patience: Seconds within which a member must return after its epoch is over. The default is half of `timeout`.
        gather: Seconds for which ready workers of the first epoch wait for workers that are starting. The default is
            the same as in later epochs.
        names: Names of these limits in messages.
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
        """Seconds within which a member must return after its epoch is over."""
        return self.timeout / 2 if self.patience is None else self.patience

    def has_room(self, size: int) -> bool:
        """Return True if an epoch of `size` members can grow."""
        return self.most is None or size < self.most


@dataclass
class Resets:
    """Counter of the changes of a job's members.

    Attributes:
        most: Maximum number of changes, or None for no limit.
        done: Number of changes so far.
    """

    most: int | None
    done: int = 0

    @property
    def used_up(self) -> bool:
        """True if the members must not change any more."""
        return self.most is not None and self.done >= self.most


SHORTEST, LONGEST = 1, 3600
"""Smallest and largest accepted value of the range in seconds."""


def check_range(given: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the cooldown range unchanged. Raises ValueError if the range is invalid."""
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
    """Hosts that get no new workers for a cooldown time, because a worker failed on them.

    The first failure excludes a host for the minimum time plus a random jitter of at most the same length. Each further
    failure doubles the time, up to the maximum. The jitter prevents hosts that failed together from returning together.
    The caller passes all times (monotonic, seconds).

    Attributes:
        cooldown: Minimum and maximum cooldown in seconds, or None to exclude hosts permanently.
        seed: Seed of the random jitter.
    """

    cooldown: tuple[float, float] | None = None
    seed: int | None = None
    _hosts: dict[str, _Failed] = field(default_factory=dict)
    _last: float = -math.inf  # time of the last failure on any host

    def __post_init__(self) -> None:
        check_range(self.cooldown)
        self._random = random.Random(self.seed)

    def failed(self, host: str, now: float) -> float:
        """Record that a worker failed on the host, and exclude the host.

        If the host is already excluded, the failure does not extend its cooldown. So workers that fail together count
        once.

        Returns:
            Seconds for which the host remains excluded, or infinity if it is excluded permanently.
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
        """Return True if the host is currently excluded."""
        known = self._hosts.get(host)
        return known is not None and now < known.until

    def bars_for_ever(self, hosts: Collection[str], now: float) -> bool:
        """Return True if all of these hosts are excluded permanently. Return False if there are no hosts."""
        return bool(hosts) and self.next_return(now) is None and all(self.bars(host, now) for host in hosts)

    def closes_at(self, hosts: Collection[str], full: bool, now: float) -> float:
        """Return the time from which none of these hosts can get new workers, or infinity if a host still can.

        `full` is True if the remaining hosts have too few free slots. One of them can still prove to be lost, which
        would free slots. So the result is then TORN_DOWN seconds after the last failure, when all lost hosts are known.
        """
        if self.bars_for_ever(hosts, now):
            return -math.inf
        return self._last + TORN_DOWN if full and self.next_return(now) is None else math.inf

    def barred(self, hosts: Collection[str], now: float) -> list[str]:
        """Return those hosts that are currently excluded."""
        return [host for host in hosts if self.bars(host, now)]

    def usable(self, slots: Mapping[str, int], now: float) -> dict[str, int]:
        """Return the slots of those hosts that are not excluded."""
        return {host: count for host, count in slots.items() if not self.bars(host, now)}

    def next_return(self, now: float) -> float | None:
        """Return the time (monotonic, s) at which the next excluded host becomes usable, or None."""
        times = [known.until for known in self._hosts.values() if now < known.until < math.inf]
        return min(times, default=None)

    def next_time(self, now: float) -> float | None:
        """Return the time at which the set of usable hosts can change next, or None.

        This happens when a host's cooldown ends, and when all hosts lost by the last failure are known.
        """
        times = [self.next_return(now), self._last + TORN_DOWN if now < self._last + TORN_DOWN else None]
        return min((at for at in times if at is not None), default=None)

    def postpone(self, seconds: float) -> None:
        """Extend the time for detecting lost hosts by `seconds`, because the launcher was stopped."""
        self._last += seconds
