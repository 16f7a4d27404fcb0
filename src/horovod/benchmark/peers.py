"""Installed libraries to compare the engine with: gloo (torch.distributed) and MPI (mpi4py)."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from horovod.benchmark.cases import Case
from horovod.benchmark.jobs import Job, mpi_command, mpi_tools

_SCRIPT = Path(__file__).resolve().parent / "standalone" / "mpi_peer.py"


class Gloo:
    """torch.distributed with gloo, in the processes of the job. All ranks create it together."""

    name = "gloo"

    def __init__(self, rank: int, size: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        patience = datetime.timedelta(seconds=120)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=patience
        )
        self._size = size
        self.about = f"torch {torch.__version__}"
        self.barrier = dist.barrier
        self.stop = dist.destroy_process_group

    def prepare(self, case: Case) -> Callable[[], object] | None:
        """Return the operation of a case; None if gloo does not have it."""
        dist, torch = self._dist, self._torch
        count = case.bytes // 4
        # PyTorch's new name of the same operation, if available, because the old one emits a warning.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        tensor = torch.ones(count).zero_()
        part = torch.ones(count // self._size).zero_()
        other = torch.ones(count).zero_()
        operations: dict[str, Callable[[], object]] = {
            "allreduce": lambda: dist.all_reduce(tensor),
            "broadcast": lambda: dist.broadcast(tensor, 0),
            "allgather": lambda: gather(tensor, part),
            "alltoall": lambda: dist.all_to_all_single(other, tensor),
            "barrier": dist.barrier,
        }
        return operations.get(case.collective)


def gloo_missing() -> str:
    """Return why gloo cannot be measured here; empty if it can."""
    return "" if find_spec("torch") else "torch is not installed"


class Mpi:
    """MPI in separate processes, which rank 0 starts and controls."""

    def __init__(self, np: int, prefix: str, pinned: bool, timeout: float) -> None:
        """Start the job. Raises JobError if that fails."""
        mpiexec, python = mpi_tools(prefix) or ("mpiexec", sys.executable)
        pin = [] if pinned else ["--no-pin"]
        self._timeout = timeout
        self._job = Job(
            "MPI", np, lambda path: [mpi_command(mpiexec, np, [python, str(_SCRIPT), "--socket", path, *pin])]
        )
        self.name = " ".join(self._job.about.split()[:2]).removesuffix(" Version:") or "MPI"
        self.about = self._job.about

    def measure(self, case: Case, warm_up: int) -> list[list[float]]:
        """Return samples by rank. Raises JobError."""
        request = {"case": dict(vars(case)), "mode": "blocking", "warm_up": warm_up}
        return self._job.ask(request, self._timeout)

    def forget(self) -> None:
        """Free the memory of the last case."""
        self._job.ask({"forget": True}, self._timeout)

    def stop(self) -> None:
        """End the processes of the MPI job."""
        self._job.close()


def mpi_missing(prefix: str) -> str:
    """Return why MPI cannot be measured here; empty if it can."""
    return "" if mpi_tools(prefix) else "no mpiexec with mpi4py was found"
