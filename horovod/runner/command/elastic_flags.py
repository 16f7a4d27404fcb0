"""What makes a job elastic: from flags, or from the arguments of `horovod.run`, to checked settings."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.common.contract.settings import Settings
from horovod.runner.base.errors import LaunchError
from horovod.runner.base.names import FLAGS, Names
from horovod.runner.plan import hosts, slurm
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings

if TYPE_CHECKING:
    from horovod.chaos import Event

ONLY = {
    "max_num_proc": "--max-np",
    "slots_per_host": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "blacklist_cooldown_range": "--blacklist-cooldown-range",
    "chaos_report": "--chaos-report",
}
"""Flags that mean something in elastic jobs only, by their names in a namespace."""
_GPUS = (
    "a program takes the GPU of its local rank, as in torch.cuda.set_device(hvd.local_rank()), after each hvd.init()"
)
_REFUSED = {
    "HOROVOD_DEBUG_RANK": "ranks are other processes as others come and go; it is for jobs of a fixed size",
    "HOROVOD_GPUS_PER_WORKER": f"whose GPUs are free is not known there; {_GPUS}",
    "HOROVOD_GPU_AFFINITY": f"whose GPUs are free is not known there; {_GPUS}",
    "HOROVOD_DASHBOARD": "the live page shows jobs of a fixed size",
}


def of_flags(
    namespace: argparse.Namespace, given: Sequence[hosts.Host], environ: Mapping[str, str]
) -> ElasticSettings | None:
    """What the flags ask for; None: a job of a fixed size. `given`: the hosts of -H or of the host file, if any;
    without them and a script, `environ` may tell of a Slurm allocation.

    Raises LaunchError, a ValueError, naming flag, value and what is accepted.
    """
    script = namespace.host_discovery_script
    if script is None and namespace.min_num_proc is None:
        for name, flag in ONLY.items():
            if getattr(namespace, name) is not None:
                raise LaunchError(f"{flag} is for elastic jobs, which --min-np N or --host-discovery-script FILE makes")
        return None
    for controller in ("mpi", "jsrun"):
        if getattr(namespace, controller):
            raise LaunchError(
                f"--{controller} is given for an elastic job (--min-np, --host-discovery-script), but "
                f"{'mpirun' if controller == 'mpi' else controller} cannot start and end single processes; accepted is "
                "--gloo"
            )
    nodes = slurm.allocation(environ) if script is None and not given else None
    if script is None and nodes is None and namespace.slots_per_host is not None:
        warnings.warn("--slots-per-host has no effect without --host-discovery-script", stacklevel=2)
    cooldown = namespace.blacklist_cooldown_range
    elastic = made(
        start=namespace.num_proc,
        least=namespace.min_num_proc,
        most=namespace.max_num_proc,
        slots=namespace.slots_per_host,
        resets=namespace.reset_limit,
        cooldown=None if cooldown is None else (cooldown[0], cooldown[1]),
        script=script,
        given=given or [hosts.Host("localhost", namespace.num_proc)],
        nodes=nodes,
    )
    return replace(elastic, chaos_report=bool(namespace.chaos_report))


def made(
    *,
    start: int,
    least: int | None,
    most: int | None,
    slots: int | None,
    resets: int | None,
    cooldown: tuple[float, float] | None,
    script: str | None,
    given: Sequence[hosts.Host],
    nodes: slurm.Allocation | None = None,
    names: Names = FLAGS,
) -> ElasticSettings:
    """The settings, checked together. `least`: None: as many as at the start. `given`: the hosts, where no script finds
    them; `nodes`: in place of those, the allocation's. `names`: what the user calls them."""
    # Only an elastic job pays for loading this.
    from horovod.runner.elastic.cooldown import check_range
    from horovod.runner.elastic.discovery import check_fixed
    from horovod.runner.elastic.limits import Limits

    try:
        limits = Limits(start, start if least is None else least, most, resets, names=names)
        cooldown = check_range(cooldown)
        if script is None and nodes is None:
            check_fixed({host.name: host.slots for host in given}, names)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    if (script is not None or nodes is not None) and slots is not None and slots < 1:
        raise LaunchError(
            f"{names.slots} is {slots}, accepted is 1 or more, or none where the script or Slurm tells them"
        )
    if nodes is not None:
        given = [hosts.Host(name, count if slots is None else slots) for name, count in nodes.slots.items()]
    if script is None:
        hosts.assign(given, start)  # which says what is missing
    return ElasticSettings(
        limits.start,
        limits.least,
        most,
        resets,
        script=script,
        slots=slots,
        hosts=() if script is not None or nodes is not None else tuple(given),
        cooldown=cooldown,
        slurm_job="" if nodes is None else nodes.job,
    )


def with_variables(settings: LaunchSettings, checked: Settings) -> LaunchSettings:
    """With the timeout that the variables tell. Raises LaunchError for what an elastic job cannot have, and in every
    job for faults on purpose that nobody can read."""
    faults = _faults(checked.text("HOROVOD_CHAOS"))
    if settings.elastic is None:
        return settings
    unset = {"HOROVOD_DEBUG_RANK": -1}
    for name, why in _REFUSED.items():
        if (value := checked.values[name]) != unset.get(name, 0):
            raise LaunchError(f"{name} is {value} in an elastic job, but {why}")
    elastic = replace(settings.elastic, timeout=checked.number("HOROVOD_ELASTIC_TIMEOUT"), faults=faults)
    return replace(settings, elastic=elastic)


def _faults(text: str) -> tuple[Event, ...]:
    """Those that are written down one by one. Checked as each rank would in hvd.init(), but once, and before anything
    has started."""
    if text:
        # Only a job with faults pays for loading this.
        from horovod.chaos import plan

        try:
            return plan(text).events
        except ValueError as error:
            raise LaunchError(f"--chaos (HOROVOD_CHAOS) is {text!r}, which cannot be read: {error}") from None
    return ()
