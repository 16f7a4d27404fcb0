"""Jobs that run the compared libraries: their commands, environments and requirements."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from peers.limit import compiler

from horovod.benchmark import standalone
from horovod.benchmark.jobs import Job, JobError, mpi_command, mpi_tools

__all__ = ["Job", "JobError", "commands", "missing", "start"]

HERE = Path(__file__).resolve().parent
# Refer to the module by path, because horovod is not installed in MPI's environment.
SERVING = str(Path(standalone.__file__).parent)


_MPI = ("mpi4py", "numpy")


def free_ports(count: int) -> list[int]:
    """Return free ports on the loopback interface."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]


def missing(job: str, mpi_prefix: str) -> str:
    """Return the reason why this job cannot run on this machine, or an empty string if it can."""
    if job.startswith("horovod") and not importlib.util.find_spec("horovod"):
        return "horovod is not installed"
    if job == "limit":
        return "" if compiler() else "no C compiler found (cc, gcc, clang, or CC)"
    if job != "mpi" and not importlib.util.find_spec("torch"):
        return "torch is not installed"
    if job == "mpi" and not mpi_tools(mpi_prefix, _MPI):
        return "no mpiexec with mpi4py found (make bench installs them)"
    return ""


def commands(
    job: str, np: int, socket_path: str, mpi_prefix: str, pin: bool = True
) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands of the job's processes, each with its additional environment variables."""
    worker = [str(HERE / "worker.py"), *([] if pin else ["--no-pin"]), "--socket", socket_path, "--peer"]
    search = os.pathsep.join(filter(None, [SERVING, os.environ.get("PYTHONPATH")]))
    common = {"OMP_NUM_THREADS": "1", "PYTHONPATH": search}
    if job == "mpi":
        mpiexec, python = mpi_tools(mpi_prefix, _MPI) or ("mpiexec", sys.executable)
        argv, extra = mpi_command(mpiexec, np, [python, *worker, "mpi"])
        return [(list(argv), {**common, **extra})]
    if job == "torch":
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": str(np)}
        command = [sys.executable, *worker, "torch_dist"]
        return [(command, {**common, **rendezvous, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(np)]
    if job == "limit":
        place = {"LIMIT_FOLDER": str(Path(socket_path).parent), "WORLD_SIZE": str(np)}
        return [([sys.executable, *worker, "limit"], {**common, **place, "RANK": str(rank)}) for rank in range(np)]
    launcher = [sys.executable, "-m", "horovod.runner", "-np", str(np)]
    if job == "torch-hvd":
        return [([*launcher, sys.executable, *worker, "torch_dist"], {**common, "BENCH_BACKEND": "hvd"})]
    return [([*launcher, sys.executable, *worker, "ours"], common)]


def start(name: str, np: int, mpi_prefix: str, pin: bool = True) -> Job:
    """Start the job with the given name and return it. Raises JobError if it cannot start."""
    return Job(name, np, lambda path: commands(name, np, path, mpi_prefix, pin))
