"""Settings of which library performs GPU collectives (HOROVOD_GPU_OPERATIONS and related settings). Pure."""

from typing import Final, NamedTuple

from horovod.common.contract.settings import Settings

COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


class Ways(NamedTuple):
    """For each collective: True if NCCL may perform it. Otherwise, or if NCCL cannot, the engine does."""

    allreduce: bool = True
    allgather: bool = True
    broadcast: bool = True
    alltoall: bool = True
    reducescatter: bool = True


def ways(settings: Settings) -> Ways:
    """Return what the settings ask for.

    Libraries that this version does not support (mpi, ddl, ccl) mean the engine.
    """
    general = settings.text("HOROVOD_GPU_OPERATIONS")
    asked = (settings.text(f"HOROVOD_GPU_{collective.upper()}") or general for collective in COLLECTIVES)
    return Ways(*(way == "nccl" for way in asked))
