"""Settings of a job, from checked flags or arguments. Pure."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.base.errors import LaunchError
from horovod.runner.plan.hosts import Host, Slot, is_local

if TYPE_CHECKING:
    from horovod.chaos import Event


@dataclass(frozen=True)
class MpiOptions:
    """The user's options for mpirun. `binding` replaces the default binding arguments."""

    extra: tuple[str, ...] = ()
    binding: tuple[str, ...] | None = None
    tcp: bool = False


def mpi_options(mpi_args: str | None, binding_args: str | None, tcp: bool) -> MpiOptions:
    """Parse the flags' values. Raises LaunchError naming the flag if quotes do not match."""
    return MpiOptions(
        _words("--mpi-args", mpi_args) if mpi_args else (),
        _words("--binding-args", binding_args) if binding_args else None,
        tcp,
    )


def _words(flag: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise LaunchError(f"{flag} must be words of a shell, got {text!r}: {error}") from None


@dataclass(frozen=True)
class ElasticSettings:
    """Settings of an elastic job.

    The hosts come from `script`, from the Slurm allocation `slurm_job`, or are always `hosts`.

    Attributes:
        start: Workers at the start.
        least: Fewest workers; see `elastic.limits.Limits` for this and the next three.
        most: Most workers.
        resets: How often the members may change.
        timeout: Seconds without a running epoch.
        script: Path of the discovery script.
        slots: Slots of hosts for which the script prints none, or of the allocation's nodes in place of its tasks.
        hosts: Fixed hosts.
        cooldown: Minimum and maximum seconds for which a host is barred after a failure; None means permanently.
        chaos_report: Report the outcome of injected faults at the end.
        faults: Injected faults that were listed one by one.
        slurm_job: Id of the Slurm allocation.
    """

    start: int
    least: int
    most: int | None = None
    resets: int | None = None
    timeout: float = 600.0
    script: str | None = None
    slots: int | None = None
    hosts: tuple[Host, ...] = ()
    cooldown: tuple[float, float] | None = None
    chaos_report: bool = False
    faults: tuple[Event, ...] = ()
    slurm_job: str = ""


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of a job. All values have been checked."""

    command: list[str]
    slots: list[Slot]  # empty in an elastic job
    variables: dict[str, str] = field(default_factory=dict)  # set by flags, for all workers
    start_timeout: float = 30.0
    output_filename: str | None = None
    timestamp: bool = False
    prefix: bool = True  # print the rank before each line of its output
    prefix_host: bool = False  # print the host, too
    collapse: bool = False  # show a line of several ranks once
    verbose: bool = False
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    remote_python: str | None = None  # interpreter on other hosts; None: the path of the launcher's own
    ssh_fanout: int = 32
    heartbeat_timeout: float = 10.0
    grace: float = 30.0  # s for ranks to end by themselves when the user stops the job
    env_allow: tuple[str, ...] = ()  # patterns, see `environment.passed_on`
    env_deny: tuple[str, ...] = ()
    mpi: MpiOptions | None = None  # start the workers with mpirun
    jsrun: bool = False
    debug_rank: int | None = None
    dashboard: int | None = None  # port of the dashboard, 0: any; None: no dashboard
    names: Names = FLAGS  # names of the settings in messages
    gpus_per_worker: int = 0  # GPUs for each worker alone; 0: all workers see all GPUs
    gpu_affinity: bool = False  # run workers on the CPUs near their GPUs
    torch_env: bool = True  # set the variables of torch.distributed in the workers
    torch_port: int = 0  # MASTER_PORT; 0: a free one
    own_python: bool = False  # the command is the arguments of the interpreter that runs the host's agent
    at_home: bool = False  # workers get environment and directory of their agent's parent instead of the launcher's
    elastic: ElasticSettings | None = None  # None: the job has the same ranks from start to end

    @property
    def size(self) -> int:
        """Number of ranks at the start."""
        return len(self.slots) if self.elastic is None else self.elastic.start

    @property
    def in_this_directory(self) -> bool:
        """True if all ranks are known to run on this machine, in the launcher's current directory."""
        if self.mpi is not None and self.mpi.extra:  # mpirun's own flags may name another directory
            return False
        places = self.slots if self.elastic is None else self.elastic.hosts
        names = {place.hostname if isinstance(place, Slot) else place.name for place in places}
        return bool(names) and all(is_local(name) for name in names)

    @property
    def whole_command(self) -> list[str]:
        """Command for other launchers and for messages, with an interpreter where an agent would add its own."""
        return [self.remote_python or sys.executable, *self.command] if self.own_python else self.command
