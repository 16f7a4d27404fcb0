"""Jobs of the peers: started once, asleep between measurements, asked in turns. Every wait has a deadline."""

from __future__ import annotations

import importlib.util
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class JobError(Exception):
    """A job that did not start, failed, or did not answer in time; the message says which and why."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def mpi_tools(prefix: str) -> tuple[str, str] | None:
    """(mpiexec, python with mpi4py) of the environment at `prefix`, else of this one; None without such a pair."""
    found = Path(prefix, "bin", "mpiexec")
    if prefix and found.exists():
        return str(found), str(found.with_name("python"))
    here = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if here and importlib.util.find_spec("mpi4py") and importlib.util.find_spec("numpy"):
        return here, sys.executable
    return None


def missing(job: str, mpi_prefix: str) -> str:
    """Why this job cannot run here; empty when it can."""
    if job.startswith("horovod") and not importlib.util.find_spec("horovod"):
        return "horovod is not installed"
    if job != "mpi" and not importlib.util.find_spec("torch"):
        return "torch is not installed"
    if job == "mpi" and not mpi_tools(mpi_prefix):
        return "no mpiexec with mpi4py found (make bench installs them)"
    return ""


def commands(
    job: str, np: int, socket_path: str, mpi_prefix: str, pin: bool = True
) -> list[tuple[list[str], dict[str, str]]]:
    """The processes to start, each with what its environment has in addition."""
    worker = [str(HERE / "worker.py"), *([] if pin else ["--no-pin"]), "--socket", socket_path, "--peer"]
    common = {"OMP_NUM_THREADS": "1"}
    if job == "mpi":
        mpiexec, python = mpi_tools(mpi_prefix) or ("mpiexec", sys.executable)
        quiet = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # More ranks than cores need it told to yield, or it is slower by orders of magnitude.
        crowded = {"OMPI_MCA_mpi_yield_when_idle": "1"} if np > len(os.sched_getaffinity(0)) else {}
        place = ["-n", str(np), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        return [([mpiexec, *place, python, *worker, "mpi"], {**common, **quiet, **crowded})]
    if job == "torch":
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(np)}
        command = [sys.executable, *worker, "torch_dist"]
        return [(command, {**common, **rendezvous, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(np)]
    transport = {"HOROVOD_TRANSPORT": "tcp"} if job == "horovod-tcp" else {}
    launcher = [sys.executable, "-m", "horovod.runner", "-np", str(np)]
    return [([*launcher, sys.executable, *worker, "ours"], {**common, **transport})]


class Job:
    """A running job of `np` ranks. Use as a context manager; leaving it ends the processes."""

    def __init__(self, name: str, np: int, mpi_prefix: str, pin: bool = True, start_timeout: float = 90.0) -> None:
        self.name, self.np = name, np
        self.streams: dict[int, Any] = {}
        self.about = ""
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._log = Path(self._folder.name, "log").open("w+")  # noqa: SIM115 (open as long as the job is; see close())
        self._processes: list[subprocess.Popen[bytes]] = []
        path = str(Path(self._folder.name, "socket"))
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(np)
                for command, extra in commands(name, np, path, mpi_prefix, pin):
                    environment = {**os.environ, **extra}
                    self._processes.append(
                        subprocess.Popen(
                            command,
                            cwd="/",
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=self._log,
                            stderr=self._log,
                            start_new_session=True,
                        )
                    )
                self._accept(listener, time.monotonic() + start_timeout)
        except BaseException:
            self.close()
            raise

    def _accept(self, listener: socket.socket, deadline: float) -> None:
        while len(self.streams) < self.np:
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
            self.streams[hello["rank"]] = (connection, stream)

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:]

    def ask(self, request: dict[str, Any], timeout: float) -> list[list[float]]:
        """Sends the request to every rank; their samples by rank."""
        text = json.dumps(request) + "\n"
        for connection, _ in self.streams.values():
            connection.sendall(text.encode())
        deadline = time.monotonic() + timeout
        answers: dict[int, list[float]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, (connection, _) in self.streams.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(answers) < self.np:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    silent = sorted(set(self.streams) - set(answers))
                    raise JobError(
                        f"{self.name}: no answer from rank(s) {silent} within {timeout:.0f} s\n{self._tail()}"
                    )
                for key, _ in ready:
                    line = self.streams[key.data][1].readline()  # an answer is written at once: one line, one read
                    reply = json.loads(line) if line else {"error": f"the connection ended\n{self._tail()}"}
                    if "error" in reply:
                        raise JobError(f"{self.name}, rank {key.data}: {reply['error']}")
                    answers[key.data] = reply["seconds"]
                    selector.unregister(key.fileobj)
        return [answers[rank] for rank in sorted(answers)]

    def close(self) -> None:
        for connection, stream in self.streams.values():
            try:
                connection.shutdown(socket.SHUT_WR)  # the worker's loop ends at the end of its input
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
