"""Phases of an elastic job, actions that its state machine requests from the launcher, and messages to users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.base.arguments import Names
from horovod.runner.elastic.workers import Life, Worker, Workers
from horovod.runner.plan.hosts import Slot


def ranks(count: int) -> str:
    """Return the number of ranks as text, such as `1 rank` or `4 ranks`."""
    return f"{count} rank{'' if count == 1 else 's'}"


def remaining(workers: Workers, lost: Sequence[Worker], least: int, names: Names) -> str:
    """Describe how many ranks remain after the loss of the workers in `lost`.

    Return an empty string if none of the lost workers took part in training. The text does not say whether the job can
    continue, because more ranks can fail soon.
    """
    if not any(worker.survivor for worker in lost):
        return ""
    left = sum(1 for worker in workers if worker.survivor and worker.alive and worker not in lost)
    if left >= least:
        return f"; {ranks(left)} left"
    return f"; {ranks(left)} left, {least} are needed to go on ({names.least})"


def members(now: int, new: Sequence[Worker], fewer: bool) -> str:
    """Describe the members of a new epoch if workers have joined or left. Otherwise, return an empty string."""
    if new:
        return f"{ranks(now)} now; new: {', '.join(map(str, new))}"
    return f"going on with {ranks(now)}" if fewer else ""


def did_not_rejoin(patience: float) -> str:
    """Return the reason for killing a member that has not rejoined in time after the end of its epoch."""
    return (
        f"it has not come back within {patience:g} s: it hangs, computes for longer than that, or goes on after a "
        "HorovodInternalError instead of letting hvd.elastic.run have it"
    )


def too_long(workers: Workers, there: int, needed: int, seconds: float, names: Names) -> str:
    """Return the reason for ending a job in which no epoch could be started within the elastic timeout."""
    late = "".join(
        f"; {', '.join(map(str, found))} {what}"
        for life, what in ((Life.WORKING, "did not come back"), (Life.STARTING, "did not call hvd.init()"))
        if (found := workers.of(life))
    )
    return (
        f"{seconds:g} s have passed without enough workers ({names.timeout}): {there} are there, {needed} are "
        f"needed{late}"
    )


def too_many_changes(resets: int, names: Names) -> str:
    """Return the reason for ending a job whose members have changed too often."""
    return f"the members were to change more often than {names.resets} allows ({resets})"


def outside_run(victims: int) -> str:
    """Return a hint about why no worker has the training state, or an empty string.

    Args:
        victims: Number of workers that ended with HorovodInternalError.
    """
    if not victims:
        return ""
    which = "a worker" if victims == 1 else f"{victims} workers"
    return (
        f" ({which} ended with HorovodInternalError, after which hvd.elastic.run goes on: is the training in a "
        "function that is given to it?)"
    )


def waiting(there: int, needed: int, seconds: float, names: Names) -> str:
    """Return the message that the job is waiting for workers, and will end if too few arrive within `seconds`."""
    return (
        f"waiting for workers: {there} are there, {needed} are needed to go on; without them the job ends in "
        f"{math.ceil(seconds)} s ({names.timeout})"
    )


def no_host(by: str, runs: bool) -> str:
    """Return the message that no hosts were found.

    Args:
        by: Discovery script that found no hosts, or an empty string if there is no script.
        runs: True if there are running workers.
    """
    return "no host is found" + (f": {by} names none" if by else "") + ("; what runs goes on" if runs else "")


def too_few_slots(slots: int, needed: int, hosts: int) -> str:
    """Return the message that the job cannot start yet because there are too few slots."""
    return f"waiting for slots: {slots} of {needed}, on {hosts} host{'' if hosts == 1 else 's'}"


def silent(seconds: float, names: Names) -> str:
    """Return the reason for killing a worker that has not called hvd.init() in time."""
    return f"it has not called hvd.init() within {seconds:g} s ({names.timeout})"


def hopeless(hosts: Sequence[str], there: int, needed: int, names: Names) -> str:
    """Return the reason for ending a job that has too few workers and cannot start more on its excluded hosts."""
    # The name of a host can contain a comma, such as "node1, Spark task 3".
    between = "; " if any("," in host for host in hosts) else ", "
    which = f"host {hosts[0]}" if len(hosts) == 1 else f"each of the hosts {between.join(hosts)}"
    forever = f" ({names.cooldown} is not given)" if names.cooldown else ""
    return (
        f"a worker has failed on {which}, which therefore get{'s' if len(hosts) == 1 else ''} no new ones{forever}: "
        f"{there} are there, {needed} are needed"
    )


@dataclass(frozen=True)
class Spawn:
    """Request to start a worker process on a host.

    Attributes:
        worker: Number of the new worker. Worker numbers are never reused within a job.
        host: Host on which to start the worker.
    """

    worker: int
    host: str


@dataclass(frozen=True)
class Form:
    """Request to tell waiting workers to form a new epoch.

    Attributes:
        epoch: Number of the new epoch.
        places: Maps the number of each worker in the epoch to its slot (host and ranks).
    """

    epoch: int
    places: Mapping[int, Slot]


@dataclass(frozen=True)
class Break:
    """Request to tell the members of an epoch that it is over, in case they have not noticed.

    Members that are still connecting to each other stop doing so. Members that are training abort their collective
    operations.

    Attributes:
        epoch: Number of the epoch that is over.
        why: Reason to show in messages.
        lost: Numbers of the workers whose processes have exited or will be killed.
    """

    epoch: int
    why: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Notify:
    """Request to tell the members that workers can join or must leave. Members react at their next commit."""

    epoch: int
    update: HostUpdateResult


@dataclass(frozen=True)
class Dismiss:
    """Request to tell a waiting worker that it has lost its slot. The worker then exits on its own."""

    worker: int
    why: str


@dataclass(frozen=True)
class Kill:
    """Request to kill a worker with SIGKILL, because it must not run in the next epoch."""

    worker: int
    why: str


@dataclass(frozen=True)
class Abandon:
    """Request to stop waiting for a worker and its output, although its process still exists."""

    worker: int


@dataclass(frozen=True)
class Show:
    """Request to show a message to the user."""

    text: str


@dataclass(frozen=True)
class End:
    """Request to end the job and all its processes.

    Attributes:
        success: True if the job has succeeded.
        text: Why the job has failed, or an empty string if it has succeeded.
    """

    success: bool
    text: str = ""


Action = Spawn | Form | Break | Notify | Dismiss | Kill | Abandon | Show | End


# If other ranks report a lost connection to a rank, it is killed unless it shows within this many seconds that it is
# alive. A healthy rank's engine raises an error within this time.
ACCUSED = 2.0
# Maximum seconds for which new workers wait for others that are still starting. If they join together, training is
# interrupted only once.
JOIN_SECONDS = 5.0
# Grace period in seconds before a dismissed worker is killed
LEAVING = 10.0
# Seconds after SIGKILL after which a worker that still exists is abandoned
CERTAIN = 10.0
# Maximum seconds from a rank's failure to the report that its host is lost. A host that shuts down kills ranks first.
TORN_DOWN = 10.0
# If the launcher's loop wakes up more than this many seconds late, the launcher or its machine was suspended.
SUSPENDED_SECONDS = 5.0


class Phase(Enum):
    """Phase in the life cycle of an elastic job. `membership` decides the transitions.

    Attributes:
        STARTING: The first workers are starting and call hvd.init().
        FORMING: The members of a new epoch connect to each other.
        RUNNING: All members have connected and are training.
        GATHERING: The epoch is over. A new epoch is formed when all its members have returned or ended, and at least
            min_np workers are waiting.
        FINISHING: A worker has exited with success. The job waits for the other workers to end.
        ENDED: The job is over. It fails if no worker holds the training state, if the members have changed too often,
            or if no epoch is running for the elastic timeout.
    """

    STARTING = "starting"
    FORMING = "forming"
    RUNNING = "running"
    GATHERING = "gathering"
    FINISHING = "finishing"
    ENDED = "ended"


class Standstill:
    """Detector for suspensions of the launcher, by `kill -STOP` or together with its machine.

    The launcher then extends all deadlines by the time for which it was suspended. The caller passes all times
    (monotonic, seconds).
    """

    def __init__(self, now: float) -> None:
        self._looked = now
        self._deadline = math.inf

    def waits(self, until: float | None) -> None:
        """Record the latest time at which the launcher's loop will wake up.

        Args:
            until: Time (monotonic, s), or None if the loop waits for an event without a time limit.
        """
        self._deadline = math.inf if until is None else max(until, self._looked)

    def look(self, now: float) -> float:
        """Return for how many seconds the launcher was suspended since the last call; 0.0 if it was not."""
        since, self._looked = self._looked, now
        return now - since if now > self._deadline + SUSPENDED_SECONDS else 0.0
