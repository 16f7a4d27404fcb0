"""Jobs on the hosts of the test bed, started as a user would and checked for leftovers."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from horovod.runner.base import linux
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import Host, HostProcess

LIMIT = 360.0  # seconds after which a job that should have ended counts as hanging
WORKER = [sys.executable, "-m", "tests.cluster.worker"]


def launcher(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "horovod.runner", *map(str, arguments)]


def messages_of(err: str) -> list[str]:
    """Return the messages of horovodrun itself."""
    return [line.removeprefix("horovodrun: ") for line in err.splitlines() if line.startswith("horovodrun: ")]


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        return messages_of(self.err)

    @property
    def complaints(self) -> str:
        """Return stderr without the messages about a slow start, which a busy machine may cause."""
        return "".join(line for line in self.err.splitlines(True) if not line.startswith("horovodrun: waiting "))

    @property
    def lines(self) -> list[str]:
        """Return stdout's lines, sorted, because ranks print in any order."""
        return sorted(self.out.splitlines())


def no_leftovers(cluster: Cluster, seconds: float = 60.0, ignoring: tuple[str, ...] = ()) -> None:
    """Fail the test if a job left anything on any host.

    sshd needs a moment to notice the end of a session, and a host that was cut off never notices it.
    """
    deadline = time.monotonic() + seconds
    while left := cluster.leftovers(ignoring):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        time.sleep(0.02)


def run_job(
    cluster: Cluster, *arguments: str | Path, on: Host | None = None, clean: bool = True, **options: object
) -> Done:
    """Run `horovodrun arguments` to its end on host1, or `on`; options are those of Host.run.

    Nothing of the job may be left on any host, unless the test sets `clean` to False because of what it did.
    """
    done = (on or cluster.launcher).run(launcher(*arguments), timeout=LIMIT, **options)
    if clean:
        no_leftovers(cluster)
    return Done(done.returncode, done.stdout, done.stderr)


class Running:
    """A background job whose output goes to private files."""

    def __init__(
        self, host: Host, folder: Path, arguments: Sequence[str | Path], env: Mapping[str, str | None]
    ) -> None:
        self.host = host
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process: HostProcess = host.popen(launcher(*arguments), stdout=out, stderr=err, env=env)

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; fail the test with the job's output if it ends first or takes too long."""
        deadline = time.monotonic() + LIMIT
        while True:
            exited = self.process.poll() is not None  # checked first, because output may arrive just before the end
            if condition():
                return
            if exited or time.monotonic() > deadline:
                pytest.fail(f"{what}: not before the job ended ({self.process.returncode})\n{self.out}\n{self.err}")
            time.sleep(0.02)

    def wait_for_output(self, text: str, count: int = 1) -> None:
        self.wait_for(lambda: self.out.count(text) >= count, f"{count} times {text!r} on stdout")

    def finish(self, seconds: float = LIMIT) -> Done:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end within {seconds} s\n{self.out}\n{self.err}")
        return Done(code, self.out, self.err)


@contextlib.contextmanager
def running(
    cluster: Cluster,
    folder: Path,
    *arguments: str | Path,
    on: Host | None = None,
    env: Mapping[str, str | None] | None = None,
) -> Iterator[Running]:
    """Yield a job that is killed when the test is over."""
    job = Running(on or cluster.launcher, folder, arguments, env or {})
    try:
        yield job
    finally:
        for pid in [*linux.descendants(job.process.pid), job.process.pid]:
            linux.send_signal(pid, signal.SIGKILL)
        job.process.wait(LIMIT)
