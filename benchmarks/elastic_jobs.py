"""Jobs for elastic.py, which run Horovod or torchrun."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from elastic_figures import Line, members, parse

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("elastic_program.py")
# Maximum time in seconds to wait for a job.
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
        expected, found = f"{_MARK}={self._mark}".encode(), set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                zombie = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
            except OSError:
                # Skip a process that has already ended.
                continue
            if expected in variables and not zombie:
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

        Workers whose process id is in `but` are ignored.
        """
        workers: dict[int, int] = {}

        def trains(lines: list[Line]) -> bool:
            living = self.processes() - set(but)
            of_size = {pid: rank for pid, (rank, n) in members(lines, living).items() if n == size}
            for pid in of_size:
                began = max(line.at for line in lines if line.pid == pid and line.what == "begins")
                if sum(line.pid == pid and line.what == "step" and line.at > began for line in lines) < steps:
                    return False
            workers.clear()
            workers.update(of_size)
            return len(of_size) == size

        self.until(trains, f"{size} ranks that train")
        return workers

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
            folder = Path(top) / f"{name}.{uuid.uuid4().hex[:6]}"
            folder.mkdir()
            return folder

        yield make


def worker(frontend: str, folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAM), "--frontend", frontend, "--folder", str(folder), *arguments]


def hosts(folder: Path, text: str) -> None:
    """Set the hosts printed by a job's discovery script."""
    new = folder / "hosts.new"
    new.write_text(text + "\n")
    new.rename(folder / "hosts")


def horovodrun(folder: Path, command: list[str], found: str, flags: list[str]) -> Job:
    """Start `horovodrun` with a discovery script that prints the hosts in `found`."""
    hosts(folder, found)
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {folder / 'hosts'}\n")
    script.chmod(0o755)
    launcher = [sys.executable, "-m", "horovod.runner", "--host-discovery-script", str(script)]
    return Job(folder, [*launcher, "--blacklist-cooldown-range", "1", "1", *flags, *command])


def torchrun(folder: Path, count: int, restarts: int) -> Job:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    program = worker("torchrun", folder, "--snapshot", str(folder / "snapshot"))[1:]
    # Without this variable, torch 2.13 reads stale addresses of earlier processes from the launcher's store and fails
    # after every restart.
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return Job(folder, [*launcher, "--max-restarts", str(restarts), "--monitor-interval", "0.1", *program], variables)
