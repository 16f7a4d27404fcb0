"""What every rank of an estimator does before it trains."""

import multiprocessing
import os
import random
from collections.abc import Sequence

from horovod.spark.common.plan import Plan
from horovod.spark.task import get_available_devices


def prepare_rank(plan: Plan, rank: int) -> None:
    """Seeds Python's and NumPy's random numbers, differently in each rank, where there is a seed; sets how processes
    are started."""
    if plan.mp_start_method is not None:
        multiprocessing.set_start_method(plan.mp_start_method, force=True)
    if plan.seed is not None:
        import numpy as np

        random.seed(plan.seed + rank)
        np.random.seed((plan.seed + rank) % (1 << 32))


def own_gpu(count: int, local_rank: int) -> int:
    """Which of the ``count`` GPUs that this process sees is the rank's, from 0: the first of those that Spark has given
    to its task; where Spark gives out none, that of the rank's number on its host."""
    return gpu_number(get_available_devices(), os.environ.get("CUDA_VISIBLE_DEVICES"), count, local_rank)


def gpu_number(given: Sequence[str], visible: str | None, count: int, local_rank: int) -> int:
    """``own_gpu``, pure. ``given``: addresses of Spark. ``visible``: of the GPUs that the process sees, in their order;
    None: all of the host. Raises ValueError naming an address of a GPU that is not among them."""
    if not given:
        return local_rank % count
    address, seen = given[0], [name.strip() for name in visible.split(",")] if visible is not None else []
    if address in seen[:count]:
        return seen.index(address)
    # A container may number those that it has from 0, whatever they are called outside.
    if address.isdecimal() and int(address) < count:
        return int(address)
    raise ValueError(
        f"Spark has given GPU {address!r} to this task, which sees {count} GPUs (CUDA_VISIBLE_DEVICES is {visible!r})"
    )
