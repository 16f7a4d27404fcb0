"""Messages to users about elastic jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horovod.runner.base.arguments import Names
from horovod.runner.elastic.workers import Life, Worker, Workers


def ranks(count: int) -> str:
    """Return the number of ranks as text, such as `1 rank` or `4 ranks`."""
    return f"{count} rank{'' if count == 1 else 's'}"


def remaining(workers: Workers, gone: Sequence[Worker], least: int, names: Names) -> str:
    """Describe how many ranks remain after the loss of the workers in `gone`.

    Return an empty string if none of the lost workers took part in training. The text does not say whether the job can
    continue, because more ranks can fail soon.
    """
    if not any(worker.survivor for worker in gone):
        return ""
    left = sum(1 for worker in workers if worker.survivor and worker.alive and worker not in gone)
    if left >= least:
        return f"; {ranks(left)} left"
    return f"; {ranks(left)} left, {least} are needed to go on ({names.least})"


def members(now: int, new: Sequence[Worker], fewer: bool) -> str:
    """Describe the members of a new epoch if workers have joined or left. Return an empty string if not."""
    if new:
        return f"{ranks(now)} now; new: {', '.join(map(str, new))}"
    return f"going on with {ranks(now)}" if fewer else ""


def does_not_come(patience: float) -> str:
    """Return the reason for killing a member that did not return in time after its epoch was over."""
    return (
        f"it has not come back within {patience:g} s: it hangs, computes for longer than that, or goes on after a "
        "HorovodInternalError instead of letting hvd.elastic.run have it"
    )


def too_long(workers: Workers, there: int, needed: int, seconds: float, names: Names) -> str:
    """Return the reason for ending a job that had no running epoch within the elastic timeout."""
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
    """Return the message that the job is waiting for workers, and will end if there are too few after `seconds`."""
    return (
        f"waiting for workers: {there} are there, {needed} are needed to go on; without them the job ends in "
        f"{math.ceil(seconds)} s ({names.timeout})"
    )


def no_host(by: str, runs: bool) -> str:
    """Return the message that no hosts were found.

    Args:
        by: Script that found no hosts. Empty if there is no script.
        runs: True if workers are running.
    """
    return "no host is found" + (f": {by} names none" if by else "") + ("; what runs goes on" if runs else "")


def too_few_slots(slots: int, needed: int, hosts: int) -> str:
    """Return the message that the job cannot start yet, because there are too few slots."""
    return f"waiting for slots: {slots} of {needed}, on {hosts} host{'' if hosts == 1 else 's'}"


def silent(seconds: float, names: Names) -> str:
    """Return the reason for killing a worker that did not call hvd.init() in time."""
    return f"it has not called hvd.init() within {seconds:g} s ({names.timeout})"


def hopeless(hosts: Sequence[str], there: int, needed: int, names: Names) -> str:
    """Return the reason for ending a job that has too few workers and whose hosts are all excluded."""
    # The name of a host can contain a comma, such as "node1, Spark task 3".
    between = "; " if any("," in host for host in hosts) else ", "
    which = f"host {hosts[0]}" if len(hosts) == 1 else f"each of the hosts {between.join(hosts)}"
    forever = f" ({names.cooldown} is not given)" if names.cooldown else ""
    return (
        f"a worker has failed on {which}, which therefore get{'s' if len(hosts) == 1 else ''} no new ones{forever}: "
        f"{there} are there, {needed} are needed"
    )
