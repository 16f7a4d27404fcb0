"""Start real jobs from tests, and find every process that belongs to one."""

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
LIMIT = 180.0  # seconds; a job of these tests takes less than a tenth on an idle machine


def python(code: str) -> list[str]:
    """Return the command that runs a piece of Python."""
    return [sys.executable, "-c", code]


def executable(path: Path, text: str) -> Path:
    """Write an executable program."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def launcher(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "horovod.runner", *arguments]


def marked_environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return an environment by which `processes_with` finds all processes that inherit it.

    None in `extra` removes a variable.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, MARK: uuid.uuid4().hex, **(extra or {})}
    return {name: value for name, value in environment.items() if value is not None}


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
    """Run `horovodrun arguments` to its end, and check that nothing of the job is left."""
    env = marked_environment(environment)
    options = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    result = subprocess.run(launcher(arguments), env=env, cwd=cwd, capture_output=True, timeout=LIMIT, **options)
    assert processes_with(env[MARK]) == []
    return Done(result.returncode, result.stdout.decode("utf-8", "surrogateescape"), result.stderr.decode())


def processes_with(mark: str) -> list[int]:
    """Return living processes whose environment has the mark, wherever they are in the process tree."""
    variable = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                zombie = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
            except OSError:
                continue
            if variable in variables and not zombie:
                found.append(int(name))
    return found


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until the condition holds; fail the test after `seconds`. Returns the elapsed time."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - start


class Running:
    """A background job."""

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
        """Return the command line of every process of the job."""
        lines = {}
        for pid in self.left():
            with contextlib.suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return lines

    def agents(self) -> list[int]:
        """Return the pids of the guard and its child, the agent, then those of further agents in tree order."""
        found = {pid for pid, line in self.commands().items() if "runner.agent" in line}
        return sorted(found, key=lambda pid: len(found & set(linux.descendants(pid))), reverse=True)

    def finish(self, seconds: float = LIMIT, input: bytes | None = None) -> Done:
        out, err = self.process.communicate(input, timeout=seconds)
        return Done(self.process.returncode, out.decode(), err.decode())


@contextlib.contextmanager
def running(arguments: Sequence[str], **options: object) -> Iterator[Running]:
    """Yield a job that is killed when the test is over."""
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
