"""Job settings from validated flags or arguments, and the options that are sent to agents."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.base.job_result import LaunchError
from horovod.runner.plan.hosts import Host, Slot, is_local

if TYPE_CHECKING:
    from horovod.chaos import Event
    from horovod.common.contract.settings import Settings


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that tell agents how to start the workers of a job.

    A field named after a setting, such as `gpu_affinity` for HOROVOD_GPU_AFFINITY, holds the value of this setting.
    This applies to horovodrun, `horovod.run`, Kubernetes and Spark. Agents receive all fields as a part of `StartJob`.

    Attributes:
        own_python: True if the command consists of arguments for the agent's own Python interpreter.
        whole_environment: True if workers use the environment and directory of their agent's parent instead of the
            launcher's.
        env_deny: Patterns of variables that workers get neither from the launcher nor from their agent.
        gpus_per_worker: Number of GPUs that each worker has for itself, or 0 to let each worker see all GPUs of the
            agent.
        gpu_affinity: True to run each worker on the CPUs near its GPUs.
    """

    own_python: bool = False
    whole_environment: bool = False
    env_deny: list[str] = msgspec.field(name="deny", default_factory=list)
    gpus_per_worker: int = 0
    gpu_affinity: bool = False

    def with_settings(self, checked: Settings) -> WorkerOptions:
        """Return a copy in which each field that is named after a setting has the setting's value."""
        values: dict[str, Any] = {}
        for name in self.__struct_fields__:
            variable = f"HOROVOD_{name.upper()}"
            if variable in checked.values:
                value = checked.values[variable]
                values[name] = patterns(str(value)) if isinstance(getattr(self, name), list) else value
        return msgspec.structs.replace(self, **values)


def patterns(text: str) -> list[str]:
    """Split a comma-separated list into patterns. Empty patterns are omitted."""
    return [part for part in text.split(",") if part]


@dataclass(frozen=True)
class MpiOptions:
    """User-supplied mpirun options.

    Attributes:
        extra: Additional arguments for mpirun.
        binding: Arguments that replace the default arguments for binding processes to cores, or None.
        tcp: True if MPI must use TCP.
    """

    extra: tuple[str, ...] = ()
    binding: tuple[str, ...] | None = None
    tcp: bool = False


def mpi_options(mpi_args: str | None, binding_args: str | None, tcp: bool) -> MpiOptions:
    """Parse the values of the flags for mpirun. Raises LaunchError if quotes are unbalanced."""
    return MpiOptions(
        _split("--mpi-args", mpi_args) if mpi_args else (),
        _split("--binding-args", binding_args) if binding_args else None,
        tcp,
    )


def _split(flag: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise LaunchError(f"{flag} must be words of a shell, got {text!r}: {error}") from None


@dataclass(frozen=True)
class ElasticSettings:
    """Settings of an elastic job.

    The hosts are found by `script`, taken from the Slurm allocation `slurm_job`, or listed in `hosts`.

    Attributes:
        start: Initial number of workers.
        least: Minimum number of workers.
        max_np: Maximum number of workers, or None for no limit.
        resets: Maximum number of times that the members may change, or None for no limit.
        timeout: Seconds without a running epoch after which the job ends.
        script: Path of the discovery script, or None.
        slots: Number of slots for hosts that the script prints without a number. With Slurm, number of slots on each
            node, instead of its number of tasks.
        hosts: Fixed hosts of the job.
        cooldown: Minimum and maximum seconds for which a host is excluded after a failure, or None to exclude it
            permanently.
        chaos_report: True to report the outcome of injected faults at the end.
        faults: Injected faults that the user listed.
        slurm_job: Job id of the Slurm allocation, or an empty string.
    """

    start: int
    least: int
    max_np: int | None = None
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
    """Validated settings of a job.

    Attributes:
        command: Command that each rank runs.
        slots: Slots of the ranks, in rank order. In an elastic job, the list is empty.
        variables: Environment variables for all workers, as set by flags.
        start_timeout: Seconds within which all ranks must start.
        output_filename: Folder for copies of each rank's output, or None.
        timestamp: True to print the time before each line of output.
        prefix: True to print the rank before each line of output.
        prefix_host: True to print the host before each line of output.
        collapse: True to show a line once if several ranks write it.
        verbose: True to show what the launcher starts.
        ssh_port: Port of the ssh servers on other hosts, or None for ssh's default.
        ssh_identity_file: Path of the private key for ssh, or None.
        remote_python: Python interpreter on other hosts, or None for the same path as the launcher's.
        ssh_fanout: Maximum number of hosts to which each host connects by ssh.
        heartbeat_timeout: Seconds of silence after which a host is considered lost.
        grace: Seconds that ranks have to exit on their own if the user stops the job.
        env_allow: Patterns of variables, as in `environment.passed_on`.
        mpi: Options for mpirun, which then starts the workers, or None.
        jsrun: True if jsrun starts the workers.
        debug_rank: Rank to debug in the launcher's terminal, or None.
        dashboard: Port of the dashboard, 0 for any port, or None for no dashboard.
        names: Names of the settings in messages.
        torch_env: True to set the variables of torch.distributed in the workers.
        torch_port: Value of MASTER_PORT, or 0 for a free port.
        options: Options that agents apply.
        elastic: Settings of an elastic job, or None for a fixed-size job.
    """

    command: list[str]
    slots: list[Slot]
    variables: dict[str, str] = field(default_factory=dict)
    start_timeout: float = 30.0
    output_filename: str | None = None
    timestamp: bool = False
    prefix: bool = True
    prefix_host: bool = False
    collapse: bool = False
    verbose: bool = False
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    remote_python: str | None = None
    ssh_fanout: int = 32
    heartbeat_timeout: float = 10.0
    grace: float = 30.0
    env_allow: tuple[str, ...] = ()
    mpi: MpiOptions | None = None
    jsrun: bool = False
    debug_rank: int | None = None
    dashboard: int | None = None
    names: Names = FLAGS
    torch_env: bool = True
    torch_port: int = 0
    options: WorkerOptions = field(default_factory=WorkerOptions)
    elastic: ElasticSettings | None = None

    @property
    def size(self) -> int:
        """Initial number of ranks."""
        return len(self.slots) if self.elastic is None else self.elastic.start

    @property
    def in_this_directory(self) -> bool:
        """True if all ranks are known to run on this machine and in the launcher's current directory."""
        if self.mpi is not None and self.mpi.extra:  # mpirun's own flags can select another directory.
            return False
        places = self.slots if self.elastic is None else self.elastic.hosts
        names = {place.hostname if isinstance(place, Slot) else place.name for place in places}
        return bool(names) and all(is_local(name) for name in names)

    @property
    def whole_command(self) -> list[str]:
        """Command including the Python interpreter that an agent would add, for other launchers and for messages."""
        return [self.remote_python or sys.executable, *self.command] if self.options.own_python else self.command
