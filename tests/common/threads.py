"""Ranks that are threads of the test process."""

import threading
from collections.abc import Callable, Collection
from typing import Any


def run_ranks(size: int, work: Callable[[int], Any], absent: Collection[int] = ()) -> list[Any]:
    """Call ``work(rank)`` in a thread for each rank.

    Returns:
        What each rank's call returned or raised, by rank; None for ranks in ``absent``, which are not started.
    """
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
