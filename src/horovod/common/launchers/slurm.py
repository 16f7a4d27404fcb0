"""srun: reads the variables of a Slurm job step.

The allocation's variables alone do not identify a process. A batch script or a shell of salloc has SLURM_NTASKS and may
have SLURM_PROCID=0, but is a single process, and the program that starts the others from there (srun, mpirun,
horovodrun) sets its own variables. So only a step made by srun counts.
"""

import re
from collections.abc import Mapping

from horovod.common.launchers import hostlist
from horovod.common.launchers.place import Place, integer

# Higher numbers mean the batch script, the shell of salloc, the external step and the pending step.
_LAST_STEP = 0xFFFFFFF0 - 1
# An MPI library finds its job by these. srun sets them only with --mpi, which may be the cluster's default.
_PMI = ("PMI_FD", "PMI_RANK", "PMIX_RANK")
_FIRST_PORT, _PORTS = 21000, 11000  # below the range from which the system takes ports for outgoing connections


def find(env: Mapping[str, str]) -> Place | None:
    """Return this process's place; None if srun has not started it."""
    step = _step(env)
    rank, size = integer(env, "SLURM_PROCID"), integer(env, "SLURM_STEP_NUM_TASKS")
    if step is None or rank is None or size is None:
        return None
    nodes = hostlist.expand(env.get("SLURM_STEP_NODELIST", ""))
    counts = hostlist.tasks(env["SLURM_STEP_TASKS_PER_NODE"]) if env.get("SLURM_STEP_TASKS_PER_NODE") else []
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
        tells="SLURM_PROCID",
    )


def _step(env: Mapping[str, str]) -> str | None:
    """Return the number of the job step if srun made it."""
    text = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    return text if re.fullmatch("[0-9]{1,10}", text) and int(text) < _LAST_STEP else None


def _port(job: str, step: str) -> int:
    """Return a port for this step: the same on all its nodes, and different for most other steps."""
    number = int(job) if re.fullmatch("[0-9]{1,18}", job) else 0
    return _FIRST_PORT + (number * 8 + int(step) * 64) % _PORTS
