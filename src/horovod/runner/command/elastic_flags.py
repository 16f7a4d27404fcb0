"""Functions that create the settings of elastic jobs from horovodrun's flags or `horovod.run`'s arguments."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.common.contract.settings import Settings
from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.base.job_result import LaunchError
from horovod.runner.plan import allocations, hosts
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
"""Names in the namespace of the flags that only elastic jobs accept."""
_GPUS = (
    "a program takes the GPU of its local rank, as in torch.cuda.set_device(hvd.local_rank()), after each hvd.init()"
)
_REFUSED = {
    "HOROVOD_DEBUG_RANK": "processes change ranks there; use it in jobs of fixed size",
    "HOROVOD_GPUS_PER_WORKER": f"the free GPUs of a host are not known there; {_GPUS}",
    "HOROVOD_GPU_AFFINITY": f"the free GPUs of a host are not known there; {_GPUS}",
    "HOROVOD_DASHBOARD": "the live page shows only jobs of fixed size",
}


def of_flags(
    namespace: argparse.Namespace, requested: Sequence[hosts.Host], environ: Mapping[str, str]
) -> ElasticSettings | None:
    """Return the settings of an elastic job, or None if the flags describe a fixed-size job.

    Args:
        namespace: Values of the flags.
        requested: Hosts from -H or the host file, or an empty list if neither is given.
        environ: Environment variables. They can describe a Slurm allocation, whose nodes are used if `requested` is
            empty and there is no discovery script.

    Raises:
        LaunchError: If a flag is invalid, or flags contradict each other.
    """
    script = namespace.host_discovery_script
    if script is None and namespace.min_num_proc is None:
        for name, flag in ONLY.items():
            if getattr(namespace, name) is not None:
                raise LaunchError(f"{flag} needs an elastic job; add --min-np N or --host-discovery-script FILE")
        return None
    for controller in ("mpi", "jsrun"):
        if getattr(namespace, controller):
            raise LaunchError(
                f"an elastic job (--min-np, --host-discovery-script) needs the controller --gloo, got --{controller}"
                f": {'mpirun' if controller == 'mpi' else controller} cannot start and end single processes"
            )
    nodes = allocations.allocation(environ) if script is None and not requested else None
    if script is None and nodes is None and namespace.slots_per_host is not None:
        warnings.warn("--slots-per-host has no effect without --host-discovery-script", stacklevel=2)
    cooldown = namespace.blacklist_cooldown_range
    elastic = make_settings(
        start=namespace.num_proc,
        least=namespace.min_num_proc,
        max_size=namespace.max_num_proc,
        slots=namespace.slots_per_host,
        resets=namespace.reset_limit,
        cooldown=None if cooldown is None else (cooldown[0], cooldown[1]),
        script=script,
        requested=requested or [hosts.Host("localhost", namespace.num_proc)],
        nodes=nodes,
    )
    return replace(elastic, chaos_report=bool(namespace.chaos_report))


def make_settings(
    *,
    start: int,
    least: int | None,
    max_size: int | None,
    slots: int | None,
    resets: int | None,
    cooldown: tuple[float, float] | None,
    script: str | None,
    requested: Sequence[hosts.Host],
    nodes: allocations.Allocation | None = None,
    names: Names = FLAGS,
) -> ElasticSettings:
    """Check the values and return the settings of an elastic job.

    Args:
        start: Initial number of ranks.
        least: Minimum number of ranks. The default is `start`.
        max_size: Maximum number of ranks, or None for no limit.
        slots: Number of slots for hosts that the discovery script prints without a number, or None. With Slurm, number
            of slots on each node, or None for the node's number of tasks.
        resets: Maximum number of times that the set of ranks may change, or None for no limit.
        cooldown: Initial and maximum delay in seconds before a failed host is used again, or None to exclude it
            permanently.
        script: Path of the discovery script, or None.
        requested: Hosts of the job if there is no script.
        nodes: Slurm allocation to use instead of `requested`.
        names: Names of the values in messages: flags or arguments.

    Raises:
        LaunchError: If a value is invalid.
    """
    # Import lazily, because most jobs are not elastic.
    from horovod.runner.elastic.discovery import check_fixed
    from horovod.runner.elastic.limits import Limits, check_range

    try:
        limits = Limits(start, start if least is None else least, max_size, resets, names=names)
        cooldown = check_range(cooldown)
        if script is None and nodes is None:
            check_fixed({host.name: host.slots for host in requested}, names)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    if (script is not None or nodes is not None) and slots is not None and slots < 1:
        raise LaunchError(
            f"{names.slots} must be 1 or more, got {slots}; leave it out if the script or Slurm gives the slots"
        )
    if nodes is not None:
        requested = [hosts.Host(name, count if slots is None else slots) for name, count in nodes.slots.items()]
    if script is None:
        hosts.assign(requested, start)  # Only check that there are enough slots, and ignore the result.
    return ElasticSettings(
        limits.start,
        limits.least,
        max_size,
        resets,
        script=script,
        slots=slots,
        hosts=() if script is not None or nodes is not None else tuple(requested),
        cooldown=cooldown,
        slurm_job="" if nodes is None else nodes.job,
    )


def with_variables(settings: LaunchSettings, checked: Settings) -> LaunchSettings:
    """Add the timeout and the injected faults to an elastic job's settings, from environment variables.

    In other jobs, only check the injected faults, so that a mistake is reported before the job starts.

    Raises:
        LaunchError: If the faults are invalid, or a variable is not supported in elastic jobs.
    """
    faults = _faults(checked.text("HOROVOD_CHAOS"))
    if settings.elastic is None:
        return settings
    unset = {"HOROVOD_DEBUG_RANK": -1}
    for name, why in _REFUSED.items():
        if (value := checked.values[name]) != unset.get(name, 0):
            raise LaunchError(f"{name} must not be set for an elastic job, got {value}: {why}")
    elastic = replace(settings.elastic, timeout=checked.number("HOROVOD_ELASTIC_TIMEOUT"), faults=faults)
    return replace(settings, elastic=elastic)


def _faults(text: str) -> tuple[Event, ...]:
    """Parse the injected faults listed in HOROVOD_CHAOS, and check them as each rank would in hvd.init()."""
    if text:
        # Import lazily, because most jobs have no injected faults.
        from horovod.chaos import plan

        try:
            return plan(text).events
        except ValueError as error:
            raise LaunchError(f"--chaos (HOROVOD_CHAOS) cannot be parsed, got {text!r}: {error}") from None
    return ()
