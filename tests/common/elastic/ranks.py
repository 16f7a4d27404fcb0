"""Ranks as threads that provide only the two calls that states need."""

import threading
from collections.abc import Callable
from typing import Any

from horovod.common.exceptions import HorovodInternalError
from tests.common.threads import run_ranks


class Job:
    """One epoch of ``size`` ranks. ``fail`` makes current and later calls fail, as a lost rank does."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=30)
        self._slots: list[Any] = [None] * size
        self._objects: list[Any] = []

    def fail(self) -> None:
        self._barrier.abort()

    def gather(self, rank: int, obj: Any) -> list[Any]:
        try:
            self._slots[rank] = obj
            self._barrier.wait()
            found = list(self._slots)
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise HorovodInternalError("a rank was lost") from None
        return found


class FakeFrontend:
    """The frontend of one rank, in its current job."""

    def __init__(self) -> None:
        self.job = Job(1)
        self.number = 0

    def join(self, job: Job, number: int) -> None:
        self.job, self.number = job, number

    def rank(self) -> int:
        return self.number

    def broadcast(self, obj: Any, root_rank: int = 0, name: str = "") -> Any:
        return self.job.gather(self.number, obj)[root_rank]

    def gather(self, obj: Any, name: str = "") -> list[Any]:
        return self.job.gather(self.number, obj)


def run(size: int, work: Callable[[FakeFrontend], Any]) -> list[Any]:
    """Return what ``work`` returns, or raises, on each rank."""
    job = Job(size)

    def begin(number: int) -> Any:
        frontend = FakeFrontend()
        frontend.join(job, number)
        return work(frontend)

    return run_ranks(size, begin)
