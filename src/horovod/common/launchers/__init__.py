"""This process's rank in a job started by another launcher, read from the launcher's environment variables.

``find`` calls one function per launcher: jsrun (LSF), MPICH and other launchers of PMI-1, Open MPI, srun, and torchrun.
Launchers that set the same variables as torchrun work too, such as PyTorchJob of Kubernetes and cloud services.
``key_exchange.meeting`` describes how the processes of such a job find each other.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Place", "find"]

LIMIT = 65536
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's list of host names, such as ``n[08-10],login``, in order.

    Numbers keep leading zeros, and a name can contain several brackets.

    Raises:
        ValueError: If the text is invalid or has more than 65536 names.
    """
    names: list[str] = []
    for entry in _split(text):
        pieces = re.split(r"\[([^\[\]]*)\]", entry)  # the pieces at odd positions were inside brackets
        if any("[" in piece or "]" in piece for piece in pieces):
            raise ValueError(f"host list {text!r}: the brackets in {entry!r} do not match")
        choices = [_numbers(piece, text) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        for combination in itertools.product(*choices):
            names.append("".join(combination))
            if len(names) > LIMIT:
                raise ValueError(f"host list {text!r} has more than {LIMIT} names")
    return names


def _split(text: str) -> list[str]:
    """Split text at commas that are not inside brackets."""
    return [entry.strip() for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text) if entry.strip()]


def _numbers(text: str, whole: str) -> list[str]:
    made: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"host list {whole!r}: {part!r} is no number or range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= LIMIT:
            raise ValueError(f"host list {whole!r}: {part!r} is no range of at most {LIMIT} numbers that ascends")
        made += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return made


def expand_tasks(text: str) -> list[int]:
    """Parse Slurm's number of tasks per node: [3, 3, 1] for ``3(x2),1``. Raises ValueError for invalid text."""
    made: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", part.strip())
        if match is None:
            raise ValueError(f"tasks per node {text!r}: {part!r} is not of the form N or N(xM)")
        made += [int(match[1])] * int(match[2] or 1)
    return made


_INTEGER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Place:
    """A process's rank and other properties, as read from a launcher's variables. Unknown properties are None."""

    launcher: str
    """Name for messages, such as "Open MPI"."""
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    job: str = ""
    """Id that all processes of the job share, and that no other job of this user has. "" if unknown."""
    hostname: str = ""
    """Launcher's name of this host, or "" to use the system's name."""
    leads: tuple[str, ...] = ()
    """Hosts on which rank 0 can run, most likely first."""
    port: int = 0
    """First of a range of ports that this job can use on rank 0's host, or 0 if unknown."""
    mpi: bool = False
    """True if the launcher is part of MPI."""
    variable: str = ""
    """Name of the launcher's variable that contains the rank. Without it, the process has no rank in a job."""

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(
                f"the rank given by {self.launcher} must be from 0 to the number of processes minus 1, got "
                f"{self.rank} of {self.size}"
            )
        if self.local_rank is not None and self.local_size is not None and not self.local_rank < self.local_size:
            raise ValueError(
                f"the local rank given by {self.launcher} must be below the number of processes on the host, got "
                f"{self.local_rank} of {self.local_size}"
            )

    @property
    def alone(self) -> str:
        """Advice on how to run the process on its own, without a job, or "" if there is none."""
        if not self.variable:
            return ""
        return (
            f"{self.variable} makes this process one of {self.size} ({self.launcher}); where it is to run alone, unset "
            f"{self.variable}"
        )

    @property
    def one_host(self) -> bool:
        """True if all processes of the job run on this host."""
        return self.local_size == self.size


def integer(env: Mapping[str, str], name: str) -> int | None:
    """Parse an environment variable as an integer, or return None if it is unset.

    Raises:
        ValueError: If the value is invalid.
    """
    text = env.get(name, "").strip()
    if not text:
        return None
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{name} must be an integer of 0 or more, got {text!r}")
    return int(text)


def first_integer(env: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is set, parsed as an integer, or None if none is set."""
    for name in names:
        value = integer(env, name)
        if value is not None:
            return value
    return None


def both(env: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    """Parse two variables that belong together as integers. Return None if either is unset."""
    numbers = integer(env, rank), integer(env, size)
    return (numbers[0], numbers[1]) if numbers[0] is not None and numbers[1] is not None else None


_OWN_VARIABLES = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR")


def find(env: Mapping[str, str]) -> Place | None:
    """Return this process's ranks in a job that another launcher started.

    The result is None if there is no such launcher, or if Horovod's own variables are set.

    Launchers can be nested: mpirun uses srun to reach the nodes of an allocation, and either of them can start torchrun
    once per node. The innermost launcher counts, because only it knows all processes.

    Raises:
        ValueError: If a variable is invalid. The message names the variable.
    """
    if any(env.get(name) for name in _OWN_VARIABLES):
        return None
    if is_torchrun(env):
        return find_torchrun(env)
    jsm, ompi, pmi, step = find_jsrun(env), find_openmpi(env), find_mpich(env), find_srun(env)
    if jsm is not None:  # jsrun also sets Open MPI's variables, so check jsrun first
        return jsm
    if ompi is not None:
        return ompi
    if pmi is not None and (step is None or (pmi.rank, pmi.size) != (step.rank, step.size)):
        return pmi
    return step if step is not None else find_torchrun(env)


_FIRST_PORT, _PORTS = 21000, 11000


def find_jsrun(env: Mapping[str, str]) -> Place | None:
    """Return this process's ranks from jsrun's variables, or None if jsrun did not start it."""
    numbers = both(env, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
    if numbers is None:
        return None
    job = env.get("LSB_JOBID") or env.get("CSM_ALLOCATION_ID") or ""
    digits = "".join(filter(str.isdecimal, job))[-9:]
    return Place(
        "jsrun",
        *numbers,
        local_rank=integer(env, "JSM_NAMESPACE_LOCAL_RANK"),
        local_size=integer(env, "JSM_NAMESPACE_LOCAL_SIZE"),
        job=f"{job}/{env.get('PMIX_NAMESPACE') or env.get('JSM_NAMESPACE_ID', '')}",
        leads=tuple(compute_hosts(env)),
        port=_FIRST_PORT + int(digits or 0) * 8 % _PORTS,
        mpi=True,
        variable="JSM_NAMESPACE_RANK",
    )


def compute_hosts(env: Mapping[str, str]) -> list[str]:
    """Return the hosts of the LSF job on which processes run, in order and without repetitions.

    LSB_MCPU_HOSTS has the form ``launch 1 a 40 b 40``. If only the first host has a single slot, it runs the batch
    script and is not a compute host. LSB_HOSTS names a host once per slot. If neither variable is set, the list is
    empty.
    """
    words = env.get("LSB_MCPU_HOSTS", "").split()
    if words:
        counts = [int(word) if word.isdecimal() else 0 for word in words[1::2]]
        pairs = list(zip(words[::2], counts, strict=False))
        if len(pairs) > 1 and pairs[0][1] == 1 and pairs[1][1] > 1:
            pairs = pairs[1:]
        return list(dict.fromkeys(name for name, _ in pairs))
    names = env.get("LSB_HOSTS", "").split()
    if len(set(names)) > 1 and names.count(names[0]) == 1 and names.count(names[-1]) > 1:
        names = names[1:]
    return list(dict.fromkeys(names))


def in_lsf_job(env: Mapping[str, str]) -> bool:
    """Return True if this is an LSF job in which jsrun can start processes."""
    return bool(env.get("LSB_JOBID"))


def find_mpich(env: Mapping[str, str]) -> Place | None:
    """Return this process's ranks from the variables of PMI-1, or None if no PMI-1 launcher started it.

    Slurm sets PMI_RANK too (srun --mpi=pmi2). If Slurm's own variables agree, they take precedence, because they
    provide more information.
    """
    numbers = both(env, "PMI_RANK", "PMI_SIZE")
    if numbers is None:
        return None
    return Place(
        "MPICH",
        *numbers,
        local_rank=first_integer(env, "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        local_size=first_integer(env, "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
        mpi=True,
        variable="PMI_RANK",
    )


def find_openmpi(env: Mapping[str, str]) -> Place | None:
    """Return this process's ranks from Open MPI's variables, or None if its mpirun did not start the process."""
    numbers = both(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if numbers is None:
        return None
    # The PMIx namespace contains mpirun's host and process id, or a random number in Open MPI 4.
    return Place(
        "Open MPI",
        *numbers,
        local_rank=integer(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=integer(env, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        job=env.get("PMIX_NAMESPACE", ""),
        mpi=True,
        variable="OMPI_COMM_WORLD_RANK",
    )


# The code below determines the ranks of a process that srun started, from the variables of the Slurm job step.
#
# Variables of a Slurm allocation do not identify a process: a batch script or salloc shell has SLURM_NTASKS and
# possibly SLURM_PROCID=0, but is a single process. A program that starts processes from there (srun, mpirun,
# horovodrun) sets its own variables. So only a job step created by srun counts. Step numbers above this limit denote
# the batch script, the shell of salloc, the external step and the pending step.
_LAST_STEP = 0xFFFFFFF0 - 1
# Variables that tell an MPI library its job. srun sets them only with --mpi, which a cluster can have as default.
_PMI = ("PMI_FD", "PMI_RANK", "PMIX_RANK")


def find_srun(env: Mapping[str, str]) -> Place | None:
    """Return this process's ranks from Slurm's variables, or None if srun did not start it."""
    step = _step(env)
    rank, size = integer(env, "SLURM_PROCID"), integer(env, "SLURM_STEP_NUM_TASKS")
    if step is None or rank is None or size is None:
        return None
    nodes = expand_hosts(env.get("SLURM_STEP_NODELIST", ""))
    counts = expand_tasks(env["SLURM_STEP_TASKS_PER_NODE"]) if env.get("SLURM_STEP_TASKS_PER_NODE") else []
    node = integer(env, "SLURM_NODEID")
    known = node is not None and node < len(counts)
    return Place(
        "srun",
        rank,
        size,
        local_rank=integer(env, "SLURM_LOCALID"),
        local_size=counts[node] if known and node is not None else None,
        job="{}:{}.{}".format(env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURM_JOB_ID", ""), step),
        hostname=env.get("SLURMD_NODENAME", ""),
        leads=tuple(nodes),
        port=_port(env.get("SLURM_JOB_ID", ""), step),
        mpi=any(env.get(name) for name in _PMI),
        variable="SLURM_PROCID",
    )


def _step(env: Mapping[str, str]) -> str | None:
    """Return the Slurm job step's number if srun created the step, and None otherwise."""
    text = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    return text if re.fullmatch("[0-9]{1,10}", text) and int(text) < _LAST_STEP else None


def _port(job: str, step: str) -> int:
    """Derive a port from the job step. All nodes of the step get the same port, and different steps rarely do."""
    number = int(job) if re.fullmatch("[0-9]{1,18}", job) else 0
    return _FIRST_PORT + (number * 8 + int(step) * 64) % _PORTS


_SERVICES = {"AZUREML_RUN_ID": "Azure ML", "CLUSTER_SPEC": "Vertex AI"}
"""Name of the service, by a variable that only it sets.

Without any of them, the launcher is or resembles PyTorchJob.
"""


def find_torchrun(env: Mapping[str, str]) -> Place | None:
    """Return this process's ranks from the variables of torch.distributed, or None unless all of them are set."""
    numbers = both(env, "RANK", "WORLD_SIZE")
    host, port = env.get("MASTER_ADDR", "").strip(), integer(env, "MASTER_PORT")
    if numbers is None or not host or port is None:
        return None
    run = env.get("TORCHELASTIC_RUN_ID", "")
    local_size = integer(env, "LOCAL_WORLD_SIZE")
    if local_size is None and (host == "localhost" or host.startswith("127.") or host == "::1"):
        local_size = numbers[1]
    if local_size is None and (nodes := integer(env, "AZUREML_NODE_COUNT")) and numbers[1] % nodes == 0:
        # Azure ML starts the same number of processes on each node.
        local_size = numbers[1] // nodes
    # torchrun restarts all workers after a failure. Only this variable distinguishes a restart from the first start.
    again = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(
        "torchrun" if run else next((name for key, name in _SERVICES.items() if env.get(key)), "PyTorchJob"),
        *numbers,
        local_rank=integer(env, "LOCAL_RANK"),
        local_size=local_size,
        job=f"{host}:{port}/{run}/{again}",
        leads=(host,),
        port=port,
        variable="RANK",
    )


def is_torchrun(env: Mapping[str, str]) -> bool:
    """Return True if torchrun started this process, even if mpirun or srun started torchrun."""
    return "TORCHELASTIC_RUN_ID" in env
