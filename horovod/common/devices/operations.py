"""Who is to carry tensors of GPUs: what HOROVOD_GPU_OPERATIONS and its family ask for. Pure."""

from typing import Final, NamedTuple

from horovod.common.contract.settings import Settings

COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


class Ways(NamedTuple):
    """For each collective: may NCCL carry it? Where not, or where NCCL cannot, the engine does."""

    allreduce: bool = True
    allgather: bool = True
    broadcast: bool = True
    alltoall: bool = True
    reducescatter: bool = True


def ways(settings: Settings) -> Ways:
    """From the settings. The names of what this version does not have (mpi, ddl, ccl) mean the engine."""
    general = settings.text("HOROVOD_GPU_OPERATIONS")
    asked = (settings.text(f"HOROVOD_GPU_{collective.upper()}") or general for collective in COLLECTIVES)
    return Ways(*(way == "nccl" for way in asked))
