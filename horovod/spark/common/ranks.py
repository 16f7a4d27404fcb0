"""What every rank of an estimator does before it trains."""

import multiprocessing
import random

from horovod.spark.common.plan import Plan


def prepare_rank(plan: Plan, rank: int) -> None:
    """Seeds Python's and NumPy's random numbers, differently in each rank, where there is a seed; sets how processes
    are started."""
    if plan.mp_start_method is not None:
        multiprocessing.set_start_method(plan.mp_start_method, force=True)
    if plan.seed is not None:
        import numpy as np

        random.seed(plan.seed + rank)
        np.random.seed((plan.seed + rank) % (1 << 32))
