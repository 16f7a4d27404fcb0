"""Which device a rank has. Pure."""

from collections.abc import Sequence

import torch


def own_device(given: Sequence[torch.device], local_rank: int, local_size: int, gpus: int) -> torch.device:
    """The device of one rank, of those in the Trainer's ``devices``.

    ``given``: those, as Lightning has read them: ``devices=1`` is the GPU number 0. ``gpus``: how many this process
    sees. With that one GPU, the ranks of a host share out all that are there; with others, these, in their order.

    ValueError naming ``devices`` where ranks and devices do not match.
    """
    kind = given[0].type
    if kind == "cpu" and len(given) in (1, local_size):
        return given[0]
    if kind == "cuda":
        if len(given) == 1 and given[0].index == 0:
            return torch.device("cuda", local_rank % gpus)
        if len(given) >= local_size:
            return given[local_rank]
    accepted = (
        "1 or 'auto', and for GPUs as many as this host has ranks" if kind in ("cpu", "cuda") else "of CPU or CUDA"
    )
    raise ValueError(
        f"the Trainer's devices are {', '.join(map(str, given))}, and this host has {local_size} ranks with one device "
        f"each; accepted are {accepted}"
    )
