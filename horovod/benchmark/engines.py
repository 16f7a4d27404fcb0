"""The engine as a thing that is measured: without a framework, on plain memory, one engine for each way of running it.

Engines of one process live side by side; those that are not measured sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from horovod import _core
from horovod.benchmark.cases import Case
from horovod.common import dtypes, ops
from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.wiring import bootstrap
from horovod.common.wiring.calibration import World, load

_KINDS = {
    "allreduce": _core.KIND_ALLREDUCE,
    "broadcast": _core.KIND_BROADCAST,
    "allgather": _core.KIND_ALLGATHER,
    "alltoall": _core.KIND_ALLTOALL,
    "reducescatter": _core.KIND_REDUCESCATTER,
    "barrier": _core.KIND_BARRIER,
}


class Memory:
    """Zeroed memory of its own pages: no numbers of a length that some other array has warmed up."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.write(bytes(max(nbytes, 1)))  # pages that nobody has written are all the same one
        self._view = (ctypes.c_char * max(nbytes, 1)).from_buffer(self._map)
        self.address = ctypes.addressof(self._view)


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, changed for a while."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class EngineColumn:
    """An engine of the job, started with some settings of its own. All ranks make the same columns in the same order.

    ``node_of``: which ranks share memory in it, for the cost model. Raises what ``bootstrap.start`` raises.
    """

    def __init__(self, name: str, settings: Mapping[str, str], node_of: Sequence[int]) -> None:
        self.name = name
        self.node_of = list(node_of)
        self._tuning = settings.get("HOROVOD_TUNING", os.environ.get("HOROVOD_TUNING", ""))
        self._override = settings.get("HOROVOD_ALGORITHM", os.environ.get("HOROVOD_ALGORITHM", ""))
        with environment(settings):
            self.job, self._engine = bootstrap.start(WorkerEnv.from_environ(), None, [], False)
        chosen = Settings.from_environ({**os.environ, **settings})
        if self.job.rank == 0 and not self._tuning and chosen.flag("HOROVOD_CALIBRATE"):
            transport = chosen.text("HOROVOD_TRANSPORT")
            world = World.here(self.job.size, self.job.local_size, self.job.cross_size, transport)
            self._tuning = load(world)[0]  # as bootstrap did
        self._barrier = self._call("barrier", "barrier.benchmark", 0, 0, ())

    def _call(
        self, collective: str, name: str, source: int, target: int, shape: tuple[int, ...]
    ) -> Callable[[], object]:
        """Root is rank 0. An allreduce is submitted again by its Work, as the faces do."""
        run, kind = self._engine.run, _KINDS[collective]

        def call() -> _core.Work:
            work = run(kind, name, source, target, shape, dtypes.FLOAT32, ops.Sum, 0, 1.0, 1.0, 0, None, "", 0)
            work.wait()
            return work

        if collective != "allreduce":
            return call
        work: _core.Work | None = None

        def again() -> object:
            nonlocal work
            if work is None:
                work = call()
                return None
            work.run_again(source, target)
            return work.wait()

        return again

    def shared_memory(self, nbytes: int) -> _core.Buffer | None:
        """Memory for tensors that the ranks of a host share; None where there is none left, or none at all."""
        return self._engine.allocate(nbytes)

    def barrier(self) -> object:
        """Waits for all ranks."""
        return self._barrier()

    def prepare(self, case: Case, in_place: bool = True, shared: bool = False) -> Callable[[], object]:
        """The operation of a case, blocking; allreduce (``in_place``) and broadcast in place, the others from one
        memory to another (allgather and alltoall to memory that the engine makes, as for every user of them).
        ``shared``: an allreduce in memory that the ranks share; MemoryError where there is none left for it."""
        count, ranks = case.bytes // 4, self.job.size
        part = count // ranks if case.collective == "allgather" else count
        name = f"{case.collective}.benchmark.{case.bytes}"
        shape: tuple[int, ...] = (
            (ranks, count // ranks) if case.collective in ("alltoall", "reducescatter") else (part,)
        )
        if case.collective == "barrier":
            return self._barrier
        source = self.shared_memory(case.bytes) if shared else Memory(4 * part)
        if source is None:
            raise MemoryError(f"no {case.bytes} bytes are left in the memory that the ranks share")
        if shared:
            name += ".shared"
        target: Memory | _core.Buffer
        if case.collective == "broadcast" or (case.collective == "allreduce" and in_place):
            target = source
        else:
            target = Memory(4 * (count if case.collective == "allreduce" else count // ranks))
        call = self._call(case.collective, name, source.address, target.address, shape)
        call.__dict__["memory"] = (source, target)  # lives as long as the operation may be called
        return call

    def submitter(self, name: str, memory: Memory, count: int) -> Callable[[], _core.Work]:
        """Starts an allreduce of ``count`` numbers in place each time it is called; the result is to be waited for
        before the next call."""
        submit, kind, address, shape = self._engine.submit, _core.KIND_ALLREDUCE, memory.address, (count,)
        work: _core.Work | None = None

        def start() -> _core.Work:
            nonlocal work
            if work is None:
                work = submit(kind, name, address, address, shape, dtypes.FLOAT32, ops.Sum, 0, 1.0, 1.0, 0, None, "", 0)
            else:
                work.submit_again(address, address)
            return work

        return start

    def algorithm(self, case: Case) -> str:
        """What the table, or the override, takes for this case."""
        return _core.choose_algorithm(
            case.collective, dtypes.FLOAT32, case.bytes, self.node_of, self._override, self._tuning
        )

    def stop(self) -> None:
        """Leaves the job; nothing of the engine stays."""
        self._engine.shutdown("the benchmark ended")
