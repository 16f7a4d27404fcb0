"""Open MPI and derived launchers (Spectrum MPI, the MPIJob of Kubernetes): reads the variables of mpirun and PMIx."""

from collections.abc import Mapping

from horovod.common.launchers.place import Place, both, integer


def find(env: Mapping[str, str]) -> Place | None:
    """Return this process's place; None if Open MPI's mpirun has not started it."""
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
        tells="OMPI_COMM_WORLD_RANK",
    )
