"""Jobs started by other launchers: who this process is in one (``find``, pure), and how its processes meet
(``meeting``). One module per launcher.
"""

from collections.abc import Mapping

from horovod.common.launchers import lsf, mpich, openmpi, slurm, torchrun
from horovod.common.launchers.place import Place

__all__ = ["Place", "find"]

_OURS = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR")


def find(env: Mapping[str, str]) -> Place | None:
    """This process's place in a job of another launcher; None without one, or when variables of ours say who it is.

    Launchers start each other: mpirun uses srun to reach the nodes of an allocation, and torchrun is started once per
    node by either. The innermost counts, for only it knows all processes.

    Raises ValueError naming a variable that cannot be understood.
    """
    if any(env.get(name) for name in _OURS):
        return None
    if torchrun.is_inside(env):
        return torchrun.find(env)
    jsm, ompi, pmi, step = lsf.find(env), openmpi.find(env), mpich.find(env), slurm.find(env)
    if jsm is not None:  # jsrun sets the variables of Open MPI too
        return jsm
    if ompi is not None:
        return ompi
    if pmi is not None and (step is None or (pmi.rank, pmi.size) != (step.rank, step.size)):
        return pmi
    return step if step is not None else torchrun.find(env)
