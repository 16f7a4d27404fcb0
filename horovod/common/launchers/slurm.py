"""srun: the variables of a Slurm job step.

Variables of the allocation alone start nobody: in a batch script or a shell of salloc, which have SLURM_NTASKS and may
have SLURM_PROCID=0, there is one process, and whoever starts the others from there (srun, mpirun, horovodrun) sets
variables of its own. Only a step that srun made counts.
"""

import re
from collections.abc import Mapping

from horovod.common.launchers import hostlist
from horovod.common.launchers.place import Place, integer

# Steps above are the batch script, the shell of salloc, the step of external processes and the pending one.
_LAST_STEP = 0xFFFFFFF0 - 1
# By these an MPI library finds its job; srun sets them with --mpi only, which may be the cluster's default.
_PMI = ("PMI_FD", "PMI_RANK", "PMIX_RANK")
_FIRST_PORT, _PORTS = 21000, 11000  # below the range from which the system gives ports to outgoing connections


def find(env: Mapping[str, str]) -> Place | None:
    """This process's place, None when srun has not started it."""
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
    """The number of a step made by srun."""
    text = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    return text if re.fullmatch("[0-9]{1,10}", text) and int(text) < _LAST_STEP else None


def _port(job: str, step: str) -> int:
    """A port for this step: the same on all its nodes, another one for most other steps."""
    number = int(job) if re.fullmatch("[0-9]{1,18}", job) else 0
    return _FIRST_PORT + (number * 8 + int(step) * 64) % _PORTS
