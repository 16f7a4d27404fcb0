"""Open MPI and what is made of it (Spectrum MPI, Kubernetes' MPIJob): variables of mpirun and of PMIx."""

from collections.abc import Mapping

from horovod.common.launchers.place import Place, both, integer


def find(env: Mapping[str, str]) -> Place | None:
    """This process's place, None when mpirun of Open MPI has not started it."""
    numbers = both(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if numbers is None:
        return None
    # PMIx's name of the job carries mpirun's host and process number, or a random number in Open MPI 4.
    return Place(
        "Open MPI",
        *numbers,
        local_rank=integer(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=integer(env, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        job=env.get("PMIX_NAMESPACE", ""),
        mpi=True,
        tells="OMPI_COMM_WORLD_RANK",
    )
