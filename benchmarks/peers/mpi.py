"""Benchmark of mpi4py, for comparison with Horovod. It reduces NumPy arrays in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cases import Case
from mpi4py import MPI


class Peer:
    def __init__(self) -> None:
        self.world = MPI.COMM_WORLD
        self.rank = self.world.rank
        self.about = MPI.Get_library_version().split(",")[0].strip()
        self.barrier = self.world.Barrier
        check = np.full(1000, self.rank + 1, "f4")
        self.world.Allreduce(MPI.IN_PLACE, check)
        assert bool((check == self.world.size * (self.world.size + 1) / 2).all())

    def prepare(self, case: Case, mode: str) -> Callable[[], None]:
        world = self.world
        shapes = case.shapes if mode != "one flat" else [(case.bytes // 4,)]
        arrays = [np.ones(shape, "f4") for shape in reversed(shapes)]
        for array in arrays:
            array[...] = 0

        def sequential() -> None:
            for array in arrays:
                world.Allreduce(MPI.IN_PLACE, array)

        def concurrent() -> None:
            MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, array) for array in arrays])

        return {"blocking": sequential, "one flat": sequential, "async": concurrent}[mode]

    def stop(self) -> None:
        """Do nothing, because MPI_Finalize runs at exit."""
