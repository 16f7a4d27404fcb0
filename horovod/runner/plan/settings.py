"""All that a job is started from. Pure: from flags and arguments that have been checked."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.runner.base.errors import LaunchError
from horovod.runner.base.names import FLAGS, Names
from horovod.runner.plan.hosts import Host, Slot, is_local

if TYPE_CHECKING:
    from horovod.chaos import Event


@dataclass(frozen=True)
class MpiOptions:
    """What the user wants of mpirun. `binding`: in place of ours."""

    extra: tuple[str, ...] = ()
    binding: tuple[str, ...] | None = None
    tcp: bool = False


def mpi_options(mpi_args: str | None, binding_args: str | None, tcp: bool) -> MpiOptions:
    """From the flags. Raises LaunchError naming the flag whose quotes do not match."""
    return MpiOptions(
        _words("--mpi-args", mpi_args) if mpi_args else (),
        _words("--binding-args", binding_args) if binding_args else None,
        tcp,
    )


def _words(flag: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise LaunchError(f"{flag} is {text!r}, which cannot be split into words: {error}") from None


@dataclass(frozen=True)
class ElasticSettings:
    """Of a job whose workers come and go; the first five as in ``elastic.limits.Limits``. `script` finds its hosts, and
    `slots` is how many those have that do not tell it; or they are the nodes of the allocation `slurm_job`, `slots` of
    them in place of its tasks; or always `hosts`. `cooldown`: s, from and to, for which a host is left alone on which a
    worker has failed; None: for ever. `chaos_report`: what came of faults on purpose is said at the end; `faults`:
    those that were written down one by one."""

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
    """All that a job is started from; every value has been checked."""

    command: list[str]
    slots: list[Slot]  # none in an elastic job
    variables: dict[str, str] = field(default_factory=dict)  # set by flags, for all workers
    start_timeout: float = 30.0
    output_filename: str | None = None
    timestamp: bool = False
    prefix: bool = True  # a rank's number before each line of its output
    prefix_host: bool = False  # and its host
    collapse: bool = False  # a line of many ranks is shown once
    verbose: bool = False
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    remote_python: str | None = None  # None: the path of the launcher's own
    disable_cache: bool = False
    ssh_fanout: int = 32
    heartbeat_timeout: float = 10.0
    grace: float = 30.0  # s for ranks to end by themselves when the user asks for the end
    env_allow: tuple[str, ...] = ()  # patterns, see environment.passed_on
    env_deny: tuple[str, ...] = ()
    mpi: MpiOptions | None = None  # started by mpirun
    jsrun: bool = False
    debug_rank: int | None = None
    dashboard: int | None = None  # port of the live page, 0: any; None: no page
    names: Names = FLAGS  # what the caller calls what it can set
    gpus_per_worker: int = 0  # for it alone; 0: all see all
    gpu_affinity: bool = False  # workers run on the CPUs near their GPUs
    own_python: bool = False  # the command is what follows the interpreter that runs the host's agent
    at_home: bool = False  # workers get environment and directory of the process that starts their agent, not ours
    elastic: ElasticSettings | None = None  # None: the job has the same ranks from its start to its end

    @property
    def size(self) -> int:
        """Ranks that it begins with."""
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
        """The command where no agent knows its host's interpreter: for other launchers, and to be shown."""
        return [self.remote_python or sys.executable, *self.command] if self.own_python else self.command
