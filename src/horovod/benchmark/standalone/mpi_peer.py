"""One rank of an MPI job, which calls mpi4py with raw byte buffers.

mpiexec starts this file by its path, in any environment with mpi4py.
"""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Callable
from types import SimpleNamespace

from mpi4py import MPI
from serving import serve


class Peer:
    """MPI peer that ``serve`` measures.

    A case has the attributes ``collective``, ``bytes``, ``samples`` and ``inner``. Elements are float32, and reductions
    work in place if MPI supports that.
    """

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank = self._world.rank
        self.about = MPI.Get_library_version().split(",")[0].splitlines()[0].strip()
        self.barrier = self._world.Barrier

    def prepare(self, case: SimpleNamespace, mode: str) -> Callable[[], object]:
        world, part = self._world, case.bytes // self._world.size
        whole, other = (memoryview(mmap.mmap(-1, max(case.bytes, 1)))[: case.bytes] for _ in range(2))
        # Write to the memory. Unwritten pages would all map to the same zero page.
        whole[:] = other[:] = bytes(case.bytes)
        numbers, place = [whole, MPI.FLOAT], [other, MPI.FLOAT]
        slices = [other[:part], MPI.FLOAT]
        operations: dict[str, Callable[[], object]] = {
            "allreduce": lambda: world.Allreduce(MPI.IN_PLACE, numbers),
            "broadcast": lambda: world.Bcast(numbers, root=0),
            "allgather": lambda: world.Allgather(slices, numbers),
            "alltoall": lambda: world.Alltoall(numbers, place),
            "reducescatter": lambda: world.Reduce_scatter_block(numbers, slices),
            "barrier": world.Barrier,
        }
        return operations[case.collective]

    def stop(self) -> None:
        """Do nothing, because MPI_Finalize runs at exit."""


def main() -> None:
    """Run one MPI rank, which serves the benchmark's measurement requests on a socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--no-pin", action="store_true")
    args = parser.parse_args()
    serve(Peer(), args.socket, SimpleNamespace, not args.no_pin)


if __name__ == "__main__":
    main()
