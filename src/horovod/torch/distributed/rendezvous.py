"""Rendezvous of process groups over the engine, for ``init_method="hvd://"``."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from horovod.common.state import state
from horovod.torch.distributed.engine import basics, exchange_number


def rendezvous(url: str, timeout: timedelta = timedelta(minutes=30), **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield store, rank and size of a process group of all ranks, for ``init_method="hvd://"``.

    The environment variables of torch.distributed are not needed. Rank 0 opens the store and sends its port to the
    other ranks through the engine.
    """
    basics.init()
    job = state.require_job()
    if job.rank == 0:
        store = dist.TCPStore("0.0.0.0", 0, job.size, True, timeout, wait_for_workers=False)
        exchange_number(store.port)
    else:
        store = dist.TCPStore(job.first_address or "127.0.0.1", exchange_number(0), job.size, False, timeout)
    yield store, job.rank, job.size
