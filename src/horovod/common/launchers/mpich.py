"""MPICH, Intel MPI, MVAPICH and others whose mpiexec is Hydra: reads the variables of PMI-1."""

from collections.abc import Mapping

from horovod.common.launchers.place import Place, both, first_integer


def find(env: Mapping[str, str]) -> Place | None:
    """Return this process's place; None if no mpiexec of this family has started it.

    Slurm sets PMI_RANK too (srun --mpi=pmi2). If both agree, Slurm's own variables take precedence, because they
    contain more.
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
        tells="PMI_RANK",
    )
