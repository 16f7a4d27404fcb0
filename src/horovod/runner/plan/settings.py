"""Settings of a job, made from checked flags or arguments, and the part of them on which its agents act."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.base.errors import LaunchError
from horovod.runner.plan.hosts import Host, Slot, is_local

if TYPE_CHECKING:
    from horovod.chaos import Event
    from horovod.common.contract.settings import Settings


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How agents start the workers of a job.

    A field named like a setting, such as `gpu_affinity` for HOROVOD_GPU_AFFINITY, gets the setting's value, whether the
    job is started by horovodrun, `horovod.run`, Kubernetes or Spark. Agents receive all fields as part of `StartJob`.
    """

    own_python: bool = False  # True if the command consists of arguments for the agent's own interpreter.
    # True if workers get environment and directory of their agent's parent instead of the launcher's.
    whole_environment: bool = False
    # Patterns of variables that workers do not get from the launcher or from their agent.
    env_deny: list[str] = msgspec.field(name="deny", default_factory=list)
    # Number of GPUs that each worker has alone, from those visible to the agent; 0: every worker sees all GPUs.
    gpus_per_worker: int = 0
    gpu_affinity: bool = False  # True to run each worker on the CPUs near its GPUs.

    def with_settings(self, checked: Settings) -> WorkerOptions:
        """Return a copy with the values of all settings that have a field here."""
        values: dict[str, Any] = {}
        for name in self.__struct_fields__:
            variable = f"HOROVOD_{name.upper()}"
            if variable in checked.values:
                value = checked.values[variable]
                values[name] = patterns(str(value)) if isinstance(getattr(self, name), list) else value
        return msgspec.structs.replace(self, **values)


def patterns(text: str) -> list[str]:
    """Return the patterns of a comma-separated list."""
    return [part for part in text.split(",") if part]


@dataclass(frozen=True)
class MpiOptions:
    """Options for mpirun that the user gave. `binding` replaces the default binding arguments."""

    extra: tuple[str, ...] = ()
    binding: tuple[str, ...] | None = None
    tcp: bool = False


def mpi_options(mpi_args: str | None, binding_args: str | None, tcp: bool) -> MpiOptions:
    """Parse the values of the flags. Raises LaunchError if quotes do not match."""
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

    The hosts come from `script`, from the Slurm allocation `slurm_job`, or from the fixed list `hosts`.

    Attributes:
        start: Initial number of workers.
        least: Minimum number of workers. This and the next three are as in `elastic.limits.Limits`.
        most: Maximum number of workers; None means no limit.
        resets: Number of times the members may change; None means no limit.
        timeout: Seconds without a running epoch after which the job ends.
        script: Path of the discovery script, or None.
        slots: Slots of each host for which the script prints none, or of each node instead of its number of tasks.
        hosts: Fixed hosts.
        cooldown: Minimum and maximum seconds for which a host is excluded after a failure; None means permanently.
        chaos_report: True to report the outcome of injected faults at the end.
        faults: Injected faults that the user listed.
        slurm_job: Job id of the Slurm allocation; empty for none.
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
    """Settings of a job, whose values have all been checked."""

    command: list[str]
    slots: list[Slot]  # Empty in an elastic job.
    variables: dict[str, str] = field(default_factory=dict)  # Variables for all workers that flags have set.
    start_timeout: float = 30.0
    output_filename: str | None = None
    timestamp: bool = False
    prefix: bool = True  # True to print the rank before each line of its output.
    prefix_host: bool = False  # True to print the host as well.
    collapse: bool = False  # True to show a line once if several ranks write it.
    verbose: bool = False
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    remote_python: str | None = None  # interpreter on other hosts; None means the same path as the launcher's own
    ssh_fanout: int = 32
    heartbeat_timeout: float = 10.0
    grace: float = 30.0  # Seconds for ranks to end by themselves when the user stops the job.
    env_allow: tuple[str, ...] = ()  # Patterns as in `environment.passed_on`.
    mpi: MpiOptions | None = None  # options for mpirun, which then starts the workers; None: not used
    jsrun: bool = False
    debug_rank: int | None = None
    dashboard: int | None = None  # Port of the dashboard (0: any); None for no dashboard.
    names: Names = FLAGS  # Names of the settings in messages.
    torch_env: bool = True  # True to set the variables of torch.distributed in the workers.
    torch_port: int = 0  # Value for MASTER_PORT; 0 selects a free port.
    options: WorkerOptions = field(default_factory=WorkerOptions)  # options on which the agents act
    elastic: ElasticSettings | None = None  # None for a job that has the same ranks from start to end.

    @property
    def size(self) -> int:
        """Initial number of ranks."""
        return len(self.slots) if self.elastic is None else self.elastic.start

    @property
    def in_this_directory(self) -> bool:
        """True if all ranks are known to run on this machine, in the launcher's current directory."""
        if self.mpi is not None and self.mpi.extra:  # mpirun's own flags can name another directory
            return False
        places = self.slots if self.elastic is None else self.elastic.hosts
        names = {place.hostname if isinstance(place, Slot) else place.name for place in places}
        return bool(names) and all(is_local(name) for name in names)

    @property
    def whole_command(self) -> list[str]:
        """Command for other launchers and for messages. It includes the interpreter that an agent would add."""
        return [self.remote_python or sys.executable, *self.command] if self.options.own_python else self.command
