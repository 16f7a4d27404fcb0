"""Jobs of elastic.py: ours, torchrun's and torchft's, and what their workers write down."""

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

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("elastic_program.py")
LIMIT = 180.0  # s for anything that a job is waited for
_MARK = "HVD_BENCHMARK_ELASTIC"


class Job:
    """A command in a session of its own, and the files of its workers. `folder` is its own, too."""

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
        """All that are alive and come from this job, wherever they are in the tree of processes."""
        wanted, found = f"{_MARK}={self._mark}".encode(), set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                zombie = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
            except OSError:
                continue  # it has just ended
            if wanted in variables and not zombie:
                found.add(int(name))
        return found

    def until(self, condition: Callable[[list[Line]], bool], what: str, limit: float = LIMIT) -> list[Line]:
        """The lines with which it became true."""
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
        """Waits until so many workers have done some steps together; ranks by pid. `but`: these do not count."""
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
        """Waits for the end of the command by itself; its exit code."""
        return self.process.wait(limit)

    def close(self) -> set[int]:
        """Asks the command to end, then ends what is left of it, which is returned."""
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
    """Makes folders for jobs, which are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as top:

        def make(name: str) -> Path:
            made = Path(top) / f"{name}.{uuid.uuid4().hex[:6]}"
            made.mkdir()
            return made

        yield make


def worker(face: str, folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAM), "--face", face, "--folder", str(folder), *arguments]


def hosts(folder: Path, text: str) -> None:
    """What the discovery script of a job prints from now on."""
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
    """`horovodrun` with a discovery script that prints `found`."""
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
    # Otherwise torch 2.13 finds addresses of the processes before in the launcher's store, and fails again each time.
    told = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return Job(folder, [*launcher, "--max-restarts", str(restarts), "--monitor-interval", "0.1", *program], told)


class Torchft(Job):
    """A lighthouse and replicas of one process each. A replica that has ended stays so until `again`."""

    def __init__(self, folder: Path, count: int) -> None:
        port = free_port()
        lighthouse = folder / "lighthouse.py"  # a file, since it reads the process' arguments, not Python's
        lighthouse.write_text("from torchft._torchft import lighthouse_main\nlighthouse_main()\n")
        flags = ["--bind", f"127.0.0.1:{port}", "--min_replicas", "1"]
        # Heartbeats come ten times a second by default; the default patience, 5 s, would be all that is measured.
        flags += ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "20"]
        told = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        super().__init__(folder, [sys.executable, str(lighthouse), *flags], told)
        self._replicas = [self._replica(number) for number in range(count)]

    def _replica(self, number: int) -> subprocess.Popen[bytes]:
        return self.start(worker("torchft", self.folder), REPLICA=str(number))

    def is_over(self) -> bool:
        """One has been killed; more that end have not survived it."""
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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def loopback(count: int, whole: bool = False) -> float:
    """Bytes a second of one bare connection of this machine to itself, `count` bytes long: out of one buffer of 4 MiB
    into another, which caches hold; `whole`: out of `count` bytes of memory into as many, as a state is."""
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
