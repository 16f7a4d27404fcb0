"""User-set limits of an elastic job, excluded hosts, and the admission of new workers.

The caller passes all times (monotonic, seconds).
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from horovod._version import __version__
from horovod.common.contract.membership import Facts, HostUpdateResult, decode_facts
from horovod.common.contract.settings import BY_NAME
from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.elastic.actions import JOIN_SECONDS, TORN_DOWN
from horovod.runner.elastic.workers import Worker


@dataclass(frozen=True)
class Limits:
    """Limits that the user sets for an elastic job.

    Attributes:
        start: Number of workers needed to form the first epoch (-np).
        least: Minimum number of workers in an epoch.
        max_size: Maximum number of workers in an epoch, or None for no limit.
        resets: Maximum number of changes of the members, or None for no limit.
        timeout: Seconds without a running epoch after which the job ends.
        patience: Seconds within which a member must return after its epoch is over. The default is half of `timeout`.
        gather: Seconds for which ready workers of the first epoch wait for workers that are starting. The default is
            the same as in later epochs.
        names: Names of these limits in messages.
    """

    start: int
    least: int
    max_size: int | None = None
    resets: int | None = None
    timeout: float = 600.0
    patience: float | None = None
    gather: float | None = None
    names: Names = FLAGS

    def __post_init__(self) -> None:
        names = self.names
        if not 1 <= self.least <= self.start or (self.max_size is not None and self.max_size < self.start):
            most = "any number" if self.max_size is None else self.max_size
            raise ValueError(
                f"the sizes must be 1 <= {names.least} <= {names.start} <= {names.max_np}, got {names.least} "
                f"{self.least}, {names.start} {self.start} and {names.max_np} {most}"
            )
        if self.resets is not None and self.resets < 0:
            raise ValueError(f"{names.resets} must be 0 or more, got {self.resets}")
        if self.timeout <= 0:
            raise ValueError(f"{names.timeout} must be a number of seconds above 0, got {self.timeout:g}")

    @property
    def rejoin_seconds(self) -> float:
        """Seconds within which a member must rejoin after its epoch has ended."""
        return self.timeout / 2 if self.patience is None else self.patience

    def has_room(self, size: int) -> bool:
        """Return True if a job with `size` members can have more members."""
        return self.max_size is None or size < self.max_size


@dataclass
class Resets:
    """Counter for membership changes of an elastic job.

    Attributes:
        maximum: Maximum number of changes, or None for no limit.
        count: Number of changes so far.
    """

    maximum: int | None
    count: int = 0

    @property
    def used_up(self) -> bool:
        """True if no further membership change is allowed."""
        return self.maximum is not None and self.count >= self.maximum


SHORTEST, LONGEST = 1, 3600
"""Smallest and largest accepted value of the range in seconds."""


def check_range(cooldown: tuple[float, float] | None) -> tuple[float, float] | None:
    """Check the cooldown range and return it unchanged. Raises ValueError if it is invalid."""
    if cooldown is None:
        return None
    try:
        low, high = cooldown
        fits = SHORTEST <= low <= high <= LONGEST
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"the blacklist's cooldown range must be two numbers of seconds from {SHORTEST} to {LONGEST}, MIN not "
            f"above MAX, got {cooldown!r}"
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
    _last: float = -math.inf  # Time of the last failure on any host

    def __post_init__(self) -> None:
        check_range(self.cooldown)
        self._random = random.Random(self.seed)

    def failed(self, host: str, now: float) -> float:
        """Record that a worker on the host failed, and exclude the host.

        A failure on a host that is already excluded does not extend its cooldown. Simultaneous failures therefore count
        once.

        Returns:
            Seconds for which the host remains excluded, or infinity if it is excluded permanently.
        """
        self._last = now
        entry = self._hosts.setdefault(host, _Failed())
        if entry.count and now < entry.until:
            return entry.until - now
        entry.count += 1
        if self.cooldown is None:
            entry.until = math.inf
            return math.inf
        low, high = self.cooldown
        entry.delay = low + self._random.random() * low if entry.count == 1 else 2 * entry.delay
        entry.delay = min(entry.delay, high)
        entry.until = now + entry.delay
        return entry.delay

    def bars(self, host: str, now: float) -> bool:
        """Return True if the host is currently excluded."""
        known = self._hosts.get(host)
        return known is not None and now < known.until

    def bars_for_ever(self, hosts: Collection[str], now: float) -> bool:
        """Return True if all of these hosts are excluded permanently, and False if there are no hosts."""
        return bool(hosts) and self.next_return(now) is None and all(self.bars(host, now) for host in hosts)

    def closes_at(self, hosts: Collection[str], full: bool, now: float) -> float:
        """Return the time from which on these hosts get no new workers, or infinity if a host might get one.

        Args:
            hosts: Names of the hosts.
            full: True if the usable hosts have too few free slots. The time is then TORN_DOWN seconds after the last
                failure, because a failed rank's host can be reported as lost until then.
            now: Current time (monotonic, s).
        """
        if self.bars_for_ever(hosts, now):
            return -math.inf
        return self._last + TORN_DOWN if full and self.next_return(now) is None else math.inf

    def barred(self, hosts: Collection[str], now: float) -> list[str]:
        """Return the hosts that are currently excluded."""
        return [host for host in hosts if self.bars(host, now)]

    def usable(self, slots: Mapping[str, int], now: float) -> dict[str, int]:
        """Return the slots of the hosts that are not excluded."""
        return {host: count for host, count in slots.items() if not self.bars(host, now)}

    def next_return(self, now: float) -> float | None:
        """Return the time (monotonic, s) at which the next excluded host becomes usable again, or None if none will."""
        times = [known.until for known in self._hosts.values() if now < known.until < math.inf]
        return min(times, default=None)

    def next_time(self, now: float) -> float | None:
        """Return the next time (monotonic, s) at which the set of usable hosts can change, or None.

        This is the end of a host's cooldown, or the time limit for reporting hosts that the last failure took down.
        """
        times = [self.next_return(now), self._last + TORN_DOWN if now < self._last + TORN_DOWN else None]
        return min((at for at in times if at is not None), default=None)

    def postpone(self, seconds: float) -> None:
        """Extend the time limit for reporting lost hosts by `seconds`, because the launcher was suspended."""
        self._last += seconds


class Admission:
    """Timers and notifications for admitting new workers to one job."""

    def __init__(self, gather: float | None = None) -> None:
        """Create the state of a new job.

        Args:
            gather: Seconds that ready workers wait for workers that are still starting, before the first epoch. The
                default is TOGETHER, as in later epochs.
        """
        self._wait = JOIN_SECONDS if gather is None else gather
        # Time when the first waiting worker became ready, or None
        self._ready_since: float | None = None
        # Notifications already sent to the members of this epoch
        self._notified = HostUpdateResult.no_update

    def next_time(self, now: float) -> float | None:
        """Return the time at which ready workers stop waiting for others, or None if no worker is waiting."""
        if self._ready_since is None or now >= self._ready_since + self._wait:
            return None
        return self._ready_since + self._wait

    def may_join(self, waiting: Iterable[Worker], others_start: bool, now: float) -> bool:
        """Return True if the waiting workers can join now, without waiting for workers that are still starting."""
        if all(worker.survivor for worker in waiting):
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = now
        if not others_start:
            return True
        return self._ready_since is not None and now >= self._ready_since + self._wait

    def update(self, added: bool, removed: bool) -> HostUpdateResult:
        """Return the notifications to send to the members now. Each is returned only once per epoch.

        Args:
            added: True if workers can join.
            removed: True if members must leave.
        """
        update = HostUpdateResult.no_update
        if added:
            update |= HostUpdateResult.added
        if removed:
            update |= HostUpdateResult.removed
        if not update & ~self._notified:
            return HostUpdateResult.no_update
        self._notified |= update
        return update

    def formed(self) -> None:
        """Record that a new epoch was formed. Its members have received no notifications yet."""
        self._notified = HostUpdateResult.no_update
        self._wait = JOIN_SECONDS

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, because the launcher was suspended for that long."""
        self._ready_since = None if self._ready_since is None else self._ready_since + seconds


# Ranks with different versions of horovod could misunderstand each other, and another version of Python might be unable
# to read the training state. Another version of the program could train differently without an error. If hosts are
# updated one by one on purpose, users can allow a different program, which then only causes a warning.

_CODE = "HOROVOD_ELASTIC_CODE"


class AdmissionResult(NamedTuple):
    """Decision about a new worker that wants to join the job.

    Attributes:
        refusal: Reason why the worker cannot join, or an empty string if it can.
        warning: Message to show to the user, or an empty string.
    """

    refusal: str = ""
    warning: str = ""


class Newcomers:
    """Check that new workers use the same versions of horovod, Python and the training program as the job.

    The first worker determines the job's Python version and program.

    Args:
        same_code: True to reject a worker whose program differs. It is False if HOROVOD_ELASTIC_CODE is `any`.
        version: Version of horovod. The default is the launcher's version.
    """

    def __init__(self, same_code: bool = True, version: str = __version__) -> None:
        self._same_code = same_code
        self._version = version
        self._job: Facts | None = None  # The `Facts` of the first worker, or None before it joins

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Newcomers:
        """Create the check that the environment variables configure. Raises ValueError if a value is invalid."""
        return cls(BY_NAME[_CODE].parse(environ.get(_CODE, "")) != "any")

    def judge(self, data: bytes) -> AdmissionResult:
        """Decide whether a worker may join. `data` contains the encoded `Facts` from the worker's first request."""
        try:
            facts = decode_facts(data)
        except ValueError:
            return AdmissionResult(
                "what it says of itself cannot be read: it has another version of horovod than the launcher"
            )
        if facts.version != self._version:
            return _differs("horovod", facts.version, "launcher has", self._version)
        if self._job is None:
            self._job = facts
        job = self._job
        if facts.python != job.python:
            return _differs("Python", facts.python, "job's workers have", job.python)
        if facts.code == job.code:
            return AdmissionResult()
        if facts.program == job.program:
            differs = f"its copy of {facts.program} differs from the one that the job runs"
        else:
            differs = f"its program is {facts.program or 'no file'}, but the job's is {job.program or 'no file'}"
        if self._same_code:
            return AdmissionResult(
                f"{differs}; install the same on all hosts, or let it in by HOROVOD_ELASTIC_CODE=any"
            )
        return AdmissionResult(warning=f"{differs}, which HOROVOD_ELASTIC_CODE=any allows")


def _differs(what: str, its: str, others: str, peer_value: str) -> AdmissionResult:
    return AdmissionResult(f"it has {what} {its}, but the {others} {what} {peer_value}; install the same on all hosts")
