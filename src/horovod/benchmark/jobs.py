"""Libraries to compare Horovod with. Some run in separate jobs.

Such a job is started once, and sleeps while other libraries are measured.
"""

from __future__ import annotations

import datetime
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from horovod.benchmark.options import Case

Command = tuple[Sequence[str], Mapping[str, str]]
"""Command: its arguments, and additional environment variables."""

_TAIL = 2000  # maximum number of characters of a job's output in an error message


class JobError(Exception):
    """Raised if a job did not start, failed, or did not answer in time. The message names the reason."""


def mpi_tools(prefix: str = "", modules: Sequence[str] = ("mpi4py",)) -> tuple[str, str] | None:
    """Return the paths of mpiexec and of a Python with mpi4py.

    The search uses the Python environment ``prefix``, or this process's if it is empty. The result is None if a program
    is missing.
    """
    found = Path(prefix, "bin", "mpiexec")
    if prefix and found.exists():
        return str(found), str(found.with_name("python"))
    here = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if here and all(find_spec(module) for module in modules):
        return here, sys.executable
    return None


def mpi_command(mpiexec: str, np: int, arguments: Sequence[str]) -> Command:
    """Return the command that starts ``np`` copies of a program on this host, even with fewer than ``np`` cores."""
    flags = ["-n", str(np)]
    extra = {"OMP_NUM_THREADS": "1"}
    if "open mpi" in _version(mpiexec).lower():
        flags += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        extra |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if np > len(os.sched_getaffinity(0)):
            # With more ranks than cores, Open MPI's ranks must yield the core while they wait.
            extra["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return [mpiexec, *flags, *arguments], extra


def _version(mpiexec: str) -> str:
    try:
        shown = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return shown.stdout


class Job:
    """Running job of ``np`` ranks, each of which runs ``serve`` (standalone/serving.py).

    The job is a context manager, which ends the processes on exit.

    Args:
        name: Name for messages.
        np: Number of ranks.
        commands: Function that returns the commands to start. Its argument is the path of a Unix socket to which the
            ranks must connect.
        start_timeout: Seconds within which the ranks must connect.

    Raises:
        JobError: If ranks do not connect in time.
    """

    def __init__(
        self, name: str, np: int, commands: Callable[[str], Sequence[Command]], start_timeout: float = 90.0
    ) -> None:
        self.name, self.np = name, np
        self.about = ""
        self._streams: dict[int, Any] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._log = Path(self._folder.name, "log").open("w+")  # noqa: SIM115 (open as long as the job; see close())
        self._processes: list[subprocess.Popen[bytes]] = []
        path = str(Path(self._folder.name, "socket"))
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(np)
                for command, extra in commands(path):
                    self._processes.append(self._start(command, {**os.environ, **extra}))
                self._accept(listener, time.monotonic() + start_timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _accept(self, listener: socket.socket, deadline: float) -> None:
        while len(self._streams) < self.np:
            listener.settimeout(0.5)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                ended = [p.returncode for p in self._processes if p.poll() is not None]
                if ended or time.monotonic() > deadline:
                    how = f"ended with {ended}" if ended else "did not start in time"
                    raise JobError(f"{self.name} at {self.np} processes {how}:\n{self._tail()}") from None
                continue
            connection.setblocking(True)
            stream = connection.makefile("rw")
            hello = json.loads(stream.readline())
            self.about = hello["about"]
            self._streams[hello["rank"]] = (connection, stream)

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_TAIL:]

    def ask(self, request: dict[str, Any], timeout: float) -> list[list[float]]:
        """Send the request to every rank, and return each rank's samples, in rank order.

        Raises:
            JobError: If a rank reports an error or does not answer within ``timeout`` seconds.
        """
        text = json.dumps(request) + "\n"
        for connection, _ in self._streams.values():
            connection.sendall(text.encode())
        deadline = time.monotonic() + timeout
        replies: dict[int, list[float]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, (connection, _) in self._streams.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(replies) < self.np:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    silent = sorted(set(self._streams) - set(replies))
                    raise JobError(
                        f"{self.name}: no answer from rank(s) {silent} within {timeout:.0f} s\n{self._tail()}"
                    )
                for key, _ in ready:
                    replies[key.data] = self._receive(key.data)
                    selector.unregister(key.fileobj)
        return [replies[rank] for rank in sorted(replies)]

    def _receive(self, rank: int) -> list[float]:
        # A rank sends its answer as one line in a single write, so one read returns the complete line.
        line = self._streams[rank][1].readline()
        reply: dict[str, Any] = json.loads(line) if line else {"error": f"the connection ended\n{self._tail()}"}
        if "error" in reply:
            raise JobError(f"{self.name}, rank {rank}: {reply['error']}")
        seconds: list[float] = reply["seconds"]
        return seconds

    def close(self) -> None:
        """Ask the processes to exit, kill them after 10 s, and remove their temporary files."""
        for connection, stream in self._streams.values():
            try:
                # Close the worker's input, which ends its loop.
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            stream.close()
            connection.close()
        deadline = time.monotonic() + 10
        for process in self._processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SCRIPT = Path(__file__).resolve().parent / "standalone" / "mpi_peer.py"


class Gloo:
    """Runs torch.distributed with gloo in the job's processes, for comparison. All ranks must create it together."""

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
        """Return a function that runs the operation of a case, or None if gloo does not support it."""
        dist, torch = self._dist, self._torch
        count = case.bytes // 4
        # Prefer PyTorch's new name for the operation, because the old name emits a warning.
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
    """Return the reason why gloo cannot be measured in this process, or "" if it can."""
    return "" if find_spec("torch") else "torch is not installed"


class Mpi:
    """Runs MPI for comparison, in separate processes that rank 0 starts and controls."""

    def __init__(self, np: int, prefix: str, pinned: bool, timeout: float) -> None:
        """Start the MPI job. Raises JobError if it does not start."""
        mpiexec, python = mpi_tools(prefix) or ("mpiexec", sys.executable)
        pin = [] if pinned else ["--no-pin"]
        self._timeout = timeout
        self._job = Job(
            "MPI", np, lambda path: [mpi_command(mpiexec, np, [python, str(_SCRIPT), "--socket", path, *pin])]
        )
        self.name = " ".join(self._job.about.split()[:2]).removesuffix(" Version:") or "MPI"
        self.about = self._job.about

    def measure(self, case: Case, warm_up: int) -> list[list[float]]:
        """Measure a case and return the samples of each rank. Raises JobError if the MPI job fails."""
        request = {"case": dict(vars(case)), "mode": "blocking", "warm_up": warm_up}
        return self._job.ask(request, self._timeout)

    def forget(self) -> None:
        """Free the memory used by the last measured case."""
        self._job.ask({"forget": True}, self._timeout)

    def stop(self) -> None:
        """End the processes of the MPI job."""
        self._job.close()


def mpi_missing(prefix: str) -> str:
    """Return the reason why MPI cannot be measured in this process, or "" if it can."""
    return "" if mpi_tools(prefix) else "no mpiexec with mpi4py was found"
