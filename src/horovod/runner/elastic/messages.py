"""Messages to the user about elastic jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horovod.runner.base.arguments import Names
from horovod.runner.elastic.workers import Life, Worker, Workers


def ranks(count: int) -> str:
    """Return text such as `1 rank` or `4 ranks`."""
    return f"{count} rank{'' if count == 1 else 's'}"


def remaining(workers: Workers, gone: Sequence[Worker], least: int, names: Names) -> str:
    """Return a clause on how many ranks remain without `gone`; empty if none of those was in an epoch that ran.

    The clause only describes the present, because other ranks can fail a moment later.
    """
    if not any(worker.survivor for worker in gone):
        return ""
    left = sum(1 for worker in workers if worker.survivor and worker.alive and worker not in gone)
    if left >= least:
        return f"; {ranks(left)} left"
    return f"; {ranks(left)} left, {least} are needed to go on ({names.least})"


def members(now: int, new: Sequence[Worker], fewer: bool) -> str:
    """Return the message about a new epoch if members have joined or left, else an empty string."""
    if new:
        return f"{ranks(now)} now; new: {', '.join(map(str, new))}"
    return f"going on with {ranks(now)}" if fewer else ""


def does_not_come(patience: float) -> str:
    """Return the reason for killing a member that has not returned in time."""
    return (
        f"it has not come back within {patience:g} s: it hangs, computes for longer than that, or goes on after a "
        "HorovodInternalError instead of letting hvd.elastic.run have it"
    )


def too_long(workers: Workers, there: int, needed: int, seconds: float, names: Names) -> str:
    """Return the reason for ending a job that had no running epoch within the timeout."""
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
    """Return the reason for ending a job because its members have changed too often."""
    return f"the members were to change more often than {names.resets} allows ({resets})"


def outside_run(victims: int) -> str:
    """Return a possible reason why no worker holds the training state any more, or an empty string.

    Args:
        victims: Number of workers that ended because of a HorovodInternalError.
    """
    if not victims:
        return ""
    which = "a worker" if victims == 1 else f"{victims} workers"
    return (
        f" ({which} ended with HorovodInternalError, after which hvd.elastic.run goes on: is the training in a "
        "function that is given to it?)"
    )


def waiting(there: int, needed: int, seconds: float, names: Names) -> str:
    """Return the message that a job waits for more workers, for at most `seconds`."""
    return (
        f"waiting for workers: {there} are there, {needed} are needed to go on; without them the job ends in "
        f"{math.ceil(seconds)} s ({names.timeout})"
    )


def no_host(by: str, runs: bool) -> str:
    """Return the message that there are no hosts. `by` is the script that found none; `runs` is True if workers run."""
    return "no host is found" + (f": {by} names none" if by else "") + ("; what runs goes on" if runs else "")


def too_few_slots(slots: int, needed: int, hosts: int) -> str:
    """Return the message that a job has too few slots to start."""
    return f"waiting for slots: {slots} of {needed}, on {hosts} host{'' if hosts == 1 else 's'}"


def silent(seconds: float, names: Names) -> str:
    """Return the reason for killing a worker that has not called hvd.init() in time."""
    return f"it has not called hvd.init() within {seconds:g} s ({names.timeout})"


def hopeless(hosts: Sequence[str], there: int, needed: int, names: Names) -> str:
    """Return the reason for ending a job that has too few workers and only excluded hosts."""
    between = "; " if any("," in host for host in hosts) else ", "  # "node1, Spark task 3" is one host
    which = f"host {hosts[0]}" if len(hosts) == 1 else f"each of the hosts {between.join(hosts)}"
    forever = f" ({names.cooldown} is not given)" if names.cooldown else ""
    return (
        f"a worker has failed on {which}, which therefore get{'s' if len(hosts) == 1 else ''} no new ones{forever}: "
        f"{there} are there, {needed} are needed"
    )
