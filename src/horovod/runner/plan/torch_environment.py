"""Variables through which torch.distributed programs find their rank and the address of rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.common.contract.worker_env import TORCH_PLACE
from horovod.runner.plan.hosts import Slot

LOOPBACK = "127.0.0.1"


def master(address: str, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that contain the address at which rank 0 listens.

    Args:
        address: Address of rank 0's host that all hosts can reach.
        port: Port on that host on which rank 0 can listen.
        environ: Variables that the workers get from the user. MASTER_ADDR and MASTER_PORT in it take precedence, unless
            they belong to another job of which the launcher is a rank.
    """
    made = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    if "HOROVOD_RANK" in environ:
        return made
    return {name: environ.get(name) or value for name, value in made.items()}


def variables(slot: Slot, hosts: Sequence[str], master: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one worker.

    Args:
        slot: Slot of the worker.
        hosts: Host of each rank.
        master: Result of ``master``.
    """
    node = list(dict.fromkeys(hosts)).index(slot.hostname)
    place = (slot.rank, slot.size, slot.local_rank, slot.local_size, node)
    return dict(zip(TORCH_PLACE, map(str, place), strict=True)) | dict(master)
