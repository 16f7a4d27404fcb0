"""What the launcher of an elastic job says, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horovod.runner.base.names import Names
from horovod.runner.elastic.workers import Life, Worker, Workers


def ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def remaining(workers: Workers, gone: Sequence[Worker], least: int, names: Names) -> str:
    """Return how many ranks are left without these; empty if none of them had been part of an epoch that ran.

    It promises nothing: others may fail a moment later.
    """
    if not any(worker.survivor for worker in gone):
        return ""
    left = sum(1 for worker in workers if worker.survivor and worker.alive and worker not in gone)
    if left >= least:
        return f"; {ranks(left)} left"
    return f"; {ranks(left)} left, {least} are needed to go on ({names.least})"


def members(now: int, new: Sequence[Worker], fewer: bool) -> str:
    """Return what is said when an epoch runs that some workers are new to, or have left; else empty."""
    if new:
        return f"{ranks(now)} now; new: {', '.join(map(str, new))}"
    return f"going on with {ranks(now)}" if fewer else ""


def does_not_come(patience: float) -> str:
    """Why a member that is not back in time is killed."""
    return (
        f"it has not come back within {patience:g} s: it hangs, computes for longer than that, or goes on after a "
        "HorovodInternalError instead of letting hvd.elastic.run have it"
    )


def too_long(workers: Workers, there: int, needed: int, seconds: float, names: Names) -> str:
    """Why a job ends that has been without an epoch for so long."""
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
    """Why a job ends whose members may not change any more."""
    return f"the members were to change more often than {names.resets} allows ({resets})"


def outside_run(victims: int) -> str:
    """Perhaps why nobody holds the state any more; empty: by what is known of their ends, not. `victims`: how many
    ended by a HorovodInternalError."""
    if not victims:
        return ""
    which = "a worker" if victims == 1 else f"{victims} workers"
    return (
        f" ({which} ended with HorovodInternalError, after which hvd.elastic.run goes on: is the training in a "
        "function that is given to it?)"
    )


def waiting(there: int, needed: int, seconds: float, names: Names) -> str:
    """What a job waits for that goes on with more only, and for how long from now on."""
    return (
        f"waiting for workers: {there} are there, {needed} are needed to go on; without them the job ends in "
        f"{math.ceil(seconds)} s ({names.timeout})"
    )


def no_host(by: str, runs: bool) -> str:
    """What a job without hosts says. `by`: the script that has found none, if one is used; `runs`: it has begun."""
    return "no host is found" + (f": {by} names none" if by else "") + ("; what runs goes on" if runs else "")


def too_few_slots(slots: int, needed: int, hosts: int) -> str:
    """What a job waits for that has not begun."""
    return f"waiting for slots: {slots} of {needed}, on {hosts} host{'' if hosts == 1 else 's'}"


def silent(seconds: float, names: Names) -> str:
    """Why a worker is killed that has been started, and no more is heard of."""
    return f"it has not called hvd.init() within {seconds:g} s ({names.timeout})"


def hopeless(hosts: Sequence[str], there: int, needed: int, names: Names) -> str:
    """Why a job ends of which too few workers are left."""
    between = "; " if any("," in host for host in hosts) else ", "  # "node1, Spark task 3" is one
    which = f"host {hosts[0]}" if len(hosts) == 1 else f"each of the hosts {between.join(hosts)}"
    forever = f" ({names.cooldown} is not given)" if names.cooldown else ""
    return (
        f"a worker has failed on {which}, which therefore get{'s' if len(hosts) == 1 else ''} no new ones{forever}: "
        f"{there} are there, {needed} are needed"
    )
