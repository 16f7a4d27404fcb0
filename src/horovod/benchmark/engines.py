"""Engines under test, one per configuration, which run on plain memory instead of framework tensors.

A process runs several engines at the same time. Engines that are not being measured sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from horovod import _core
from horovod.benchmark.options import Case
from horovod.common import dtypes, ops
from horovod.common.bootstrap import start
from horovod.common.bootstrap.calibration import World, load
from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import WorkerEnv

_KINDS = {
    "allreduce": _core.KIND_ALLREDUCE,
    "broadcast": _core.KIND_BROADCAST,
    "allgather": _core.KIND_ALLGATHER,
    "alltoall": _core.KIND_ALLTOALL,
    "reducescatter": _core.KIND_REDUCESCATTER,
    "barrier": _core.KIND_BARRIER,
}


class Memory:
    """Zeroed memory on separate pages. Accesses to other arrays do not bring parts of it into the CPU cache."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Write to the memory, because pages that were never written would all map to the same zero page.
        self._map.write(bytes(max(nbytes, 1)))
        self._view = (ctypes.c_char * max(nbytes, 1)).from_buffer(self._map)
        self.address = ctypes.addressof(self._view)


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change environment variables within the ``with`` block."""
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
    """An engine with given settings. Its measurements are one column of the results.

    All ranks create the same columns in the same order. The constructor raises the same errors as ``bootstrap.start``.

    Args:
        name: Name of the column.
        settings: Environment variables for this engine.
        node_of: Node of each rank in this engine, as input for the cost model.
    """

    def __init__(self, name: str, settings: Mapping[str, str], node_of: Sequence[int]) -> None:
        self.name = name
        self.node_of = list(node_of)
        self._tuning = settings.get("HOROVOD_TUNING", os.environ.get("HOROVOD_TUNING", ""))
        self._override = settings.get("HOROVOD_ALGORITHM", os.environ.get("HOROVOD_ALGORITHM", ""))
        with environment(settings):
            self.job, self._engine = start.start(WorkerEnv.from_environ(), None, [], False)
        chosen = Settings.from_environ({**os.environ, **settings})
        if self.job.rank == 0 and not self._tuning and chosen.flag("HOROVOD_CALIBRATE"):
            transport = chosen.text("HOROVOD_TRANSPORT")
            world = World.here(self.job.size, self.job.local_size, self.job.cross_size, transport)
            self._tuning = load(world)[0]  # The engine has loaded the same values.
        self._barrier = self._call("barrier", "barrier.benchmark", 0, 0, ())

    def _call(
        self, collective: str, name: str, source: int, target: int, shape: tuple[int, ...]
    ) -> Callable[[], object]:
        """Return a function that runs a collective, with root 0, to completion. An allreduce reuses its Work object."""
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
        """Allocate tensor memory shared by a host's ranks, or return None if none is available."""
        return self._engine.allocate(nbytes)

    def barrier(self) -> object:
        """Wait for all ranks of the job."""
        return self._barrier()

    def prepare(self, case: Case, in_place: bool = True, shared: bool = False) -> Callable[[], object]:
        """Return a function that runs a case's operation to completion.

        Broadcast works in place, and so does allreduce with ``in_place``. Other operations have separate input and
        output. The engine itself allocates the output of allgather and alltoall.

        Args:
            case: The case.
            in_place: False to use separate input and output in an allreduce.
            shared: True to use the ranks' shared memory in an allreduce.

        Raises:
            MemoryError: If there is not enough shared memory left.
        """
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
        call.__dict__["memory"] = (source, target)  # the returned function uses the memory, so keep a reference
        return call

    def submitter(self, name: str, memory: Memory, count: int) -> Callable[[], _core.Work]:
        """Return a function that starts an in-place allreduce of ``count`` numbers.

        The returned Work object must be waited for before the next call.
        """
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
        """Return the name of the algorithm that the engine uses for this case."""
        return _core.choose_algorithm(
            case.collective, dtypes.FLOAT32, case.bytes, self.node_of, self._override, self._tuning
        )

    def stop(self) -> None:
        """Leave the job and stop the engine."""
        self._engine.shutdown("the benchmark ended")
