"""Jobs for elastic.py, which run Horovod, torchrun or torchft."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from elastic_figures import Line, members, parse
from jobs import free_ports

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("elastic_program.py")
# Maximum seconds per wait for a job.
LIMIT = 180.0
_MARK = "HVD_BENCHMARK_ELASTIC"


class Job:
    """Command that runs in its own session.

    Its workers write event files to `folder`, which no other job uses.
    """

    def __init__(self, folder: Path, command: list[str], variables: dict[str, str] | None = None) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._mark = uuid.uuid4().hex
        self.folder = folder
        self.variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", _MARK: self._mark}
        self.variables.update(variables or {})
        self._log = folder / "log"
        self._read: dict[int, str] = {}
        self.process = self.start(command)

    def start(self, command: list[str], **more: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                env={**self.variables, **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self) -> list[Line]:
        found = []
        for file in self.folder.glob("*.lines"):
            pid = int(file.stem.rpartition("-")[2])
            found += parse(pid, file.read_text())
        return found

    def processes(self) -> set[int]:
        """Return the ids of all live processes of this job, including those outside of its process tree."""
        wanted, found = f"{_MARK}={self._mark}".encode(), set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                zombie = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
            except OSError:
                # Skip a process that has already ended.
                continue
            if wanted in variables and not zombie:
                found.add(int(name))
        return found

    def until(self, condition: Callable[[list[Line]], bool], what: str, limit: float = LIMIT) -> list[Line]:
        """Wait until `condition` holds for the events of all workers, and return the events."""
        deadline = time.monotonic() + limit
        while True:
            lines = self.lines()
            if condition(lines):
                return lines
            if self.is_over() or time.monotonic() > deadline:
                why = "the job has ended" if self.is_over() else f"not within {limit:.0f} s"
                raise SystemExit(f"{what}: {why}; its last words:\n{self.log()[-2000:]}")
            time.sleep(0.05)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def until_train(self, size: int, steps: int = 10, but: Collection[int] = ()) -> dict[int, int]:
        """Wait until `size` workers have completed `steps` steps each, and return their ranks by process id.

        Workers with a process id in `but` are ignored.
        """
        there: dict[int, int] = {}

        def trains(lines: list[Line]) -> bool:
            living = self.processes() - set(but)
            of_size = {pid: rank for pid, (rank, n) in members(lines, living).items() if n == size}
            for pid in of_size:
                began = max(line.at for line in lines if line.pid == pid and line.what == "begins")
                if sum(line.pid == pid and line.what == "step" and line.at > began for line in lines) < steps:
                    return False
            there.clear()
            there.update(of_size)
            return len(of_size) == size

        self.until(trains, f"{size} ranks that train")
        return there

    def end(self, limit: float = 30.0) -> int:
        """Wait until the command exits on its own, and return its exit code."""
        return self.process.wait(limit)

    def close(self) -> set[int]:
        """Terminate the command, kill any remaining processes, and return the ids of the killed processes."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.wait(20)
        return left


@contextlib.contextmanager
def folders() -> Iterator[Callable[[str], Path]]:
    """Yield a function that creates folders for jobs. Remove the folders at the end."""
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as top:

        def make(name: str) -> Path:
            made = Path(top) / f"{name}.{uuid.uuid4().hex[:6]}"
            made.mkdir()
            return made

        yield make


def worker(face: str, folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAM), "--face", face, "--folder", str(folder), *arguments]


def hosts(folder: Path, text: str) -> None:
    """Set the hosts printed by a job's discovery script."""
    new = folder / "hosts.new"
    new.write_text(text + "\n")
    new.rename(folder / "hosts")


def ours(
    folder: Path,
    command: list[str],
    found: str,
    flags: list[str],
    variables: dict[str, str] | None = None,
) -> Job:
    """Start `horovodrun` with a discovery script that prints the hosts in `found`."""
    hosts(folder, found)
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {folder / 'hosts'}\n")
    script.chmod(0o755)
    launcher = [sys.executable, "-m", "horovod.runner", "--host-discovery-script", str(script)]
    return Job(folder, [*launcher, "--blacklist-cooldown-range", "1", "1", *flags, *command], variables)


def fixed(folder: Path, command: list[str], count: int) -> Job:
    return Job(folder, [sys.executable, "-m", "horovod.runner", "-np", str(count), *command])


def torchrun(folder: Path, count: int, restarts: int) -> Job:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    program = worker("torchrun", folder, "--snapshot", str(folder / "snapshot"))[1:]
    # Without this variable, torch 2.13 reads stale addresses of earlier processes from the launcher's store and fails
    # after every restart.
    told = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return Job(folder, [*launcher, "--max-restarts", str(restarts), "--monitor-interval", "0.1", *program], told)


class Torchft(Job):
    """torchft job: a lighthouse, and replicas with one process each.

    The job does not restart a lost replica by itself. Call `again` to do so.
    """

    def __init__(self, folder: Path, count: int) -> None:
        (port,) = free_ports(1)
        # Run torchft from a file, because it reads the process's command line instead of sys.argv.
        lighthouse = folder / "lighthouse.py"
        lighthouse.write_text("from torchft._torchft import lighthouse_main\nlighthouse_main()\n")
        flags = ["--bind", f"127.0.0.1:{port}", "--min_replicas", "1"]
        # Reduce the timeout, because the default of 5 s would dominate the results. Heartbeats are sent ten times per
        # second by default.
        flags += ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "20"]
        told = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        super().__init__(folder, [sys.executable, str(lighthouse), *flags], told)
        self._replicas = [self._replica(number) for number in range(count)]

    def _replica(self, number: int) -> subprocess.Popen[bytes]:
        return self.start(worker("torchft", self.folder), REPLICA=str(number))

    def is_over(self) -> bool:
        """Return True if another replica has ended in addition to the killed one."""
        return super().is_over() or sum(process.poll() is not None for process in self._replicas) > 1

    def again(self) -> None:
        for number, process in enumerate(self._replicas):
            if process.poll() is not None:
                self._replicas[number] = self._replica(number)

    def close(self) -> set[int]:
        for process in self._replicas:
            process.kill()
            process.wait(20)
        return super().close()


def loopback(count: int, whole: bool = False) -> float:
    """Measure the throughput of a loopback TCP connection, in bytes per second.

    Args:
        count: Number of bytes to send.
        whole: If True, send `count` distinct bytes of memory, like a state. If False, send one buffer of 4 MiB
            repeatedly to another buffer, so that both stay in the CPU caches.
    """
    chunk = 1 << 22
    source, target = (memoryview(bytearray(b"x") * (count if whole else chunk)) for _ in range(2))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()

        def send() -> None:
            for begin in range(0, count, chunk):
                sender.sendall(source[begin % len(source) :][:chunk])
            sender.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        got, begin = 0, time.perf_counter()
        thread.start()
        with receiver:
            while part := receiver.recv_into(target[got % len(target) :][:chunk] or target):
                got += part
        took = time.perf_counter() - begin
        thread.join()
    return got / took
