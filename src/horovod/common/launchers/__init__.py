"""Place of this process in a job started by another launcher (``find``, pure). One module per launcher.

How the processes of such a job meet: ``handover.meeting``.
"""

from collections.abc import Mapping

from horovod.common.launchers import lsf, mpich, openmpi, slurm, torchrun
from horovod.common.launchers.place import Place

__all__ = ["Place", "find"]

_OURS = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR")


def find(env: Mapping[str, str]) -> Place | None:
    """Return this process's place in a job of another launcher; None without one, or if our own variables define it.

    Launchers can be nested: mpirun uses srun to reach the nodes of an allocation, and either may start torchrun once
    per node. The innermost launcher counts, because only it knows all processes.

    Raises:
        ValueError: If a variable is invalid; names it.
    """
    if any(env.get(name) for name in _OURS):
        return None
    if torchrun.is_inside(env):
        return torchrun.find(env)
    jsm, ompi, pmi, step = lsf.find(env), openmpi.find(env), mpich.find(env), slurm.find(env)
    if jsm is not None:  # jsrun also sets the variables of Open MPI
        return jsm
    if ompi is not None:
        return ompi
    if pmi is not None and (step is None or (pmi.rank, pmi.size) != (step.rank, step.size)):
        return pmi
    return step if step is not None else torchrun.find(env)
