"""Preparation of an estimator's ranks for training."""

import multiprocessing
import os
import random
from collections.abc import Sequence

from horovod.spark.common.plan import Plan
from horovod.spark.task import get_available_devices


def prepare_rank(plan: Plan, rank: int) -> None:
    """Seed the generators of Python and NumPy, differently on each rank, and set multiprocessing's start method.

    Both happen only if the plan contains a value.
    """
    if plan.mp_start_method is not None:
        multiprocessing.set_start_method(plan.mp_start_method, force=True)
    if plan.seed is not None:
        import numpy as np

        random.seed(plan.seed + rank)
        np.random.seed((plan.seed + rank) % (1 << 32))


def own_gpu(count: int, local_rank: int) -> int:
    """Return the index of this rank's GPU among the ``count`` visible ones.

    It is the first GPU that Spark assigned to the task. If Spark assigned none, it follows from the local rank.
    """
    return gpu_number(get_available_devices(), os.environ.get("CUDA_VISIBLE_DEVICES"), count, local_rank)


def gpu_number(given: Sequence[str], visible: str | None, count: int, local_rank: int) -> int:
    """Return the index of a rank's GPU among the visible ones. Pure part of ``own_gpu``.

    Args:
        given: Addresses of the GPUs that Spark assigned to the task.
        visible: Value of CUDA_VISIBLE_DEVICES; None if all GPUs of the host are visible.
        count: Number of visible GPUs.
        local_rank: Number of the rank on its host.

    Raises:
        ValueError: If the assigned GPU is not visible.
    """
    if not given:
        return local_rank % count
    address, seen = given[0], [name.strip() for name in visible.split(",")] if visible is not None else []
    if address in seen[:count]:
        return seen.index(address)
    # Within a container, GPUs may be numbered from 0, independent of their numbers on the host.
    if address.isdecimal() and int(address) < count:
        return int(address)
    raise ValueError(
        f"Spark has given GPU {address!r} to this task, which sees {count} GPUs (CUDA_VISIBLE_DEVICES is {visible!r})"
    )
