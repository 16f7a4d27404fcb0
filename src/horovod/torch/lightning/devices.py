"""Selection of a rank's device. Pure."""

from collections.abc import Sequence

import torch


def own_device(given: Sequence[torch.device], local_rank: int, local_size: int, gpus: int) -> torch.device:
    """Return the device of one rank, selected from the Trainer's ``devices``.

    Args:
        given: ``devices`` as parsed by Lightning, for which ``devices=1`` means GPU number 0. In that case, the ranks
            of a host share all of its GPUs. Otherwise they use the given devices in order.
        local_rank: Local rank of this process.
        local_size: Number of ranks on this host.
        gpus: Number of GPUs that this process sees.

    Raises:
        ValueError: ``devices`` does not match the ranks.
    """
    kind = given[0].type
    if kind == "cpu" and len(given) in (1, local_size):
        return given[0]
    if kind == "cuda":
        if len(given) == 1 and given[0].index == 0:
            return torch.device("cuda", local_rank % gpus)
        if len(given) >= local_size:
            return given[local_rank]
    supported = (
        "1, 'auto' or, for GPUs, as many as this host has ranks" if kind in ("cpu", "cuda") else "of CPU or CUDA"
    )
    raise ValueError(
        f"the Trainer's devices must be {supported}, got {', '.join(map(str, given))} for {local_size} ranks on this "
        "host, each of which uses one device"
    )
