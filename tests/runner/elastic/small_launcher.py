"""A minimal launcher of elastic jobs on this machine: processes, a store, a membership."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from horovod.common.contract.worker_env import WorkerEnv, make_key, make_key_fd
from horovod.common.store.membership import MembershipControl
from horovod.common.store.server import StoreServer
from horovod.runner.elastic.actions import End, Kill, Phase, Say, Spawn
from horovod.runner.elastic.limits import Blacklist, Limits
from horovod.runner.elastic.membership import Membership
from horovod.runner.job.membership_server import MembershipServer

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("program.py")


class SmallLauncher:
    """A context manager. ``lines``: the workers' output by number, as words without the time."""

    def __init__(
        self,
        limits: Limits,
        *arguments: str,
        cooldown: tuple[float, float] | None = (1, 1),
        program: Path = PROGRAM,
    ) -> None:
        self._command = [sys.executable, str(program), *arguments]
        key = make_key()
        self._key_fd = make_key_fd(key)
        self.front = MembershipControl()
        self._store = StoreServer(key, front=self.front)
        self.membership = Membership(limits, Blacklist(cooldown), time.monotonic())
        self._server = MembershipServer(self.front, self.membership, self._act)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.lines: dict[int, list[list[str]]] = {}
        self.said: list[str] = []
        self.end: End | None = None
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> "SmallLauncher":
        return self

    def __exit__(self, *_: object) -> None:
        for number, process in self.processes.items():
            process.kill()
            process.wait(60)
            process.stdout.close()
            sys.stderr.write(self.errors(number))  # shown by pytest
        self._store.close()
        self.front.close()
        os.close(self._key_fd)
        self._folder.cleanup()

    def discover(self, slots: Mapping[str, int]) -> None:
        self._server.do(self.membership.discovered(slots, time.monotonic()))

    def accuse(self, worker: int) -> None:
        """Report a worker that was stopped for too long."""
        self._server.do(self.membership.accused([worker], time.monotonic(), "it is stopped"))

    def freeze(self, worker: int) -> None:
        """Stop a worker without reporting it."""
        self.processes[worker].send_signal(signal.SIGSTOP)

    def lose(self, host: str) -> None:
        """Mark the host as unreachable, without closing its workers' connections."""
        for worker in self.membership.workers:
            if worker.host == host and worker.alive:
                self.freeze(worker.number)
        self._server.do(self.membership.host_lost(host, time.monotonic()))

    def errors(self, worker: int) -> str:
        """Return a worker's stderr."""
        return self._stderr(worker).read_text()

    def _stderr(self, worker: int) -> Path:
        return Path(self._folder.name) / f"{worker}"

    def running(self) -> list[int]:
        """Return the workers of the running epoch, by rank."""
        return [w.number for w in self.membership.members] if self.membership.phase is Phase.RUNNING else []

    def steps(self, worker: int) -> list[tuple[float, int]]:
        """Return (time, step) of the worker's steps."""
        return [(float(line[0]), int(line[2])) for line in self.lines[worker] if line[1] == "step"]

    def until(self, condition: Callable[[], bool], seconds: float = 180.0) -> None:
        """Serve until a condition holds; raise AssertionError with the workers' output after a timeout."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.membership.phase, self.said, self.lines)
            now = time.monotonic()
            at = self.membership.next_time(now)
            self._wait(min(deadline, now + 0.2 if at is None else at))
            self._server.do(self.membership.tick(time.monotonic()))

    def _wait(self, until: float) -> None:
        outputs = {p.stdout.fileno(): n for n, p in self.processes.items() if not p.stdout.closed}
        wait = max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self.front.fd, *outputs], [], [], wait)
        if self.front.fd in ready:
            self._server.serve(time.monotonic())
        for fd in ready:
            if fd in outputs:
                self._read(outputs[fd])

    def _read(self, worker: int) -> None:
        process = self.processes[worker]
        line = process.stdout.readline()
        if line:
            self.lines[worker].append(line.decode().split())
            return
        process.stdout.close()
        status = process.wait(60)
        self._server.gone(worker)
        self._server.do(self.membership.exited(worker, status == 0, time.monotonic()))

    def _act(self, action: object) -> None:
        if isinstance(action, Spawn):
            self._spawn(action)
        elif isinstance(action, Kill):
            self.processes[action.worker].kill()
        elif isinstance(action, Say):
            self.said.append(action.text)
        elif isinstance(action, End):
            self.end = action

    def _spawn(self, action: Spawn) -> None:
        host, port = self._store.address
        env = WorkerEnv(
            hostname=action.host,
            rendezvous_addr=host,
            rendezvous_port=port,
            key_fd=self._key_fd,
            worker=action.worker,
        )
        told = {name: value for name, value in env.to_environ().items() if not name.endswith(("RANK", "SIZE"))}
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HOROVOD_") or name == "HOROVOD_REPORT_DIR"
        }
        self.lines[action.worker] = []
        self.processes[action.worker] = subprocess.Popen(
            self._command,
            env={**inherited, **told, "HOROVOD_ELASTIC": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            pass_fds=(self._key_fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr(action.worker).open("wb"),
            bufsize=0,
        )
