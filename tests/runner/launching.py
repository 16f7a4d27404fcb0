"""Starting real jobs from tests, and finding every process that belongs to one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from horovod.runner.base import linux

ROOT = Path(__file__).resolve().parents[2]
MARK = "HVD_TEST_MARK"
LIMIT = 180.0  # s; no job of these tests takes a tenth of that on a machine that does nothing else


def python(code: str) -> list[str]:
    """The command that runs a piece of Python."""
    return [sys.executable, "-c", code]


def executable(path: Path, text: str) -> Path:
    """Write a program that may be executed."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def launcher(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "horovod.runner", *arguments]


def marked_environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """An environment by which `processes_with` finds all that inherit it; None in `extra` removes a variable."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    made = {**os.environ, "PYTHONPATH": path, MARK: uuid.uuid4().hex, **(extra or {})}
    return {name: value for name, value in made.items() if value is not None}


@dataclass
class Done:
    code: int
    out: str
    err: str


def run_job(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str | None] | None = None,
    stdin: bytes | int = subprocess.DEVNULL,
    cwd: Path | None = None,
) -> Done:
    """Run `horovodrun arguments` to its end; afterwards nothing of it may be left."""
    env = marked_environment(environment)
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    result = subprocess.run(launcher(arguments), env=env, cwd=cwd, capture_output=True, timeout=LIMIT, **given)
    assert processes_with(env[MARK]) == []
    return Done(result.returncode, result.stdout.decode("utf-8", "surrogateescape"), result.stderr.decode())


def processes_with(mark: str) -> list[int]:
    """Living processes whose environment has the mark, wherever in the process tree they are by now."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                zombie = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
            except OSError:
                continue
            if wanted in variables and not zombie:
                found.append(int(name))
    return found


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until the condition holds; fails the test after `seconds`. Returns how long it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - start


class Running:
    """A job in the background."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str | None] | None = None, **options: object
    ) -> None:
        self.environment = marked_environment(environment)
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        self.process = subprocess.Popen(  # type: ignore[call-overload]
            launcher(arguments), env=self.environment, start_new_session=True, **options
        )

    def left(self) -> list[int]:
        return processes_with(self.environment[MARK])

    def commands(self) -> dict[int, str]:
        """The command line of every process of the job."""
        lines = {}
        for pid in self.left():
            with contextlib.suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return lines

    def agents(self) -> list[int]:
        """The guard and the agent, its child; where agents start others, theirs follow in the order of the tree."""
        found = {pid for pid, line in self.commands().items() if "runner.agent" in line}
        return sorted(found, key=lambda pid: len(found & set(linux.descendants(pid))), reverse=True)

    def finish(self, seconds: float = LIMIT, input: bytes | None = None) -> Done:
        out, err = self.process.communicate(input, timeout=seconds)
        return Done(self.process.returncode, out.decode(), err.decode())


@contextlib.contextmanager
def running(arguments: Sequence[str], **options: object) -> Iterator[Running]:
    """A job that is ended by force when the test is over."""
    job = Running(arguments, **options)
    try:
        yield job
    finally:
        for pid in {job.process.pid, *job.left()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.process.wait(LIMIT)
        for stream in (job.process.stdout, job.process.stderr, job.process.stdin):
            if stream is not None:
                stream.close()
