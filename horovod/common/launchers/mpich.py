"""MPICH, Intel MPI, MVAPICH and others whose mpiexec is Hydra: variables of PMI-1."""

from collections.abc import Mapping

from horovod.common.launchers.place import Place, both, first_integer


def find(env: Mapping[str, str]) -> Place | None:
    """This process's place, None when no mpiexec of this family has started it.

    Slurm sets PMI_RANK too (srun --mpi=pmi2); its own variables say more and are asked first where both agree.
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
