"""Creation of ``hvd`` process groups, and their rendezvous through the engine."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from horovod.common.frontends import state
from horovod.torch.distributed import engine, members
from horovod.torch.distributed.engine import basics, exchange_number
from horovod.torch.distributed.process_group import HorovodProcessGroup


def create(options: Any, backend_options: Any = None) -> HorovodProcessGroup:
    """Create an ``hvd`` process group.

    ``torch.distributed`` calls this function on the group's members. It is registered with
    ``Backend.register_backend``.

    Args:
        options: Options that c10d passes: store, ranks, timeout and name.
        backend_options: Must be None.

    Returns:
        The process group.

    Raises:
        ValueError: If the ranks do not match those of the Horovod job, or the job cannot be initialized.
        torch.distributed.DistBackendError: If a member is missing, or there are too many groups.
    """  # noqa: DOC501
    if backend_options is not None:
        raise ValueError(f"pg_options must be None for backend hvd, got {type(backend_options).__name__}")
    world = not options.global_ranks_in_group
    engine.basics.init()
    job = state.require_job()
    rank, size = options.group_rank, options.group_size
    if world and (rank, size) != (job.rank, job.size):
        raise ValueError(
            f"rank and world size of the default process group must be those of the Horovod job, {job.rank} and "
            f"{job.size}, got {rank} and {size}; start the program with horovodrun or torchrun"
        )
    ranks = list(range(size)) if world else list(options.global_ranks_in_group)
    if ranks != sorted(ranks):
        raise ValueError(f"ranks of a process group must be in ascending order for backend hvd, got {ranks}")
    name = "default" if world else str(options.group_id)
    shown = str(ranks) if size <= 8 else f"[{ranks[0]}, {ranks[1]}, ... {ranks[-1]}]"
    label = f"'{name}' (hvd, ranks {shown})"
    seconds = options.timeout.total_seconds()
    existing = members.current()
    try:
        there = existing.set_of(ranks)
        if not engine.wait(there, time.monotonic() + seconds):
            raise TimeoutError(f"not all members have created it within {seconds:g} s")
        # The frontend number keeps the operations of different groups apart. Rank 0 of the group chooses it for all
        # ranks, because the next free number can differ between ranks.
        if rank == 0:
            number = existing.next_number(ranks)
            options.store.set("number", str(number))
        else:
            number = int(options.store.get("number"))
        return HorovodProcessGroup(options, ranks, label, there.number, number, world)
    except (ValueError, TimeoutError, RuntimeError) as error:
        raise engine.failure("creation", label, error) from error


# Rendezvous through the engine, for ``init_method="hvd://"``.


def rendezvous(url: str, timeout: timedelta = timedelta(minutes=30), **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield the store, rank and size of a process group of all ranks, for ``init_method="hvd://"``.

    The torch.distributed environment variables are not needed. Rank 0 opens the store and sends its port to the other
    ranks through the engine.
    """
    basics.init()
    job = state.require_job()
    if job.rank == 0:
        store = dist.TCPStore("0.0.0.0", 0, job.size, True, timeout, wait_for_workers=False)
        exchange_number(store.port)
    else:
        store = dist.TCPStore(job.first_address or "127.0.0.1", exchange_number(0), job.size, False, timeout)
    yield store, job.rank, job.size
