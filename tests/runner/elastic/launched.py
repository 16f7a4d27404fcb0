"""Elastic jobs by `horovodrun` with a discovery script whose output a test may change."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from horovod.runner.base import linux
from tests.runner.launching import Running, executable

LIMIT = 180.0  # seconds; each wait takes a few on an idle machine


class ElasticJob:
    """An elastic job and its output.

    `out`, `err`: the lines so far. `words`: words of stdout's lines by their prefix, without the time.
    """

    def __init__(self, folder: Path, hosts: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._hosts = folder / "hosts"
        self.hosts(hosts)
        script = executable(folder / "hosts.sh", f"#!/bin/sh\ncat {self._hosts}\n")
        self.job = Running(["--verbose", "--host-discovery-script", str(script), *arguments], environment)
        self.out: list[str] = []
        self.err: list[str] = []
        self._streams = {self.job.process.stdout: self.out, self.job.process.stderr: self.err}
        self._rest = dict.fromkeys(self._streams, b"")

    def hosts(self, text: str) -> None:
        """Set the script's output from now on."""
        new = self._hosts.with_suffix(".new")
        new.write_text(text + "\n")
        new.rename(self._hosts)

    def until(self, condition: Callable[[], bool], seconds: float = LIMIT) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.shown()
            assert self._streams, f"the job has ended\n{self.shown()}"
            self._read(0.1)

    def until_line(self, pattern: str, seconds: float = LIMIT) -> str:
        """Return the launcher's first line that matches the pattern."""
        self.until(lambda: any(re.search(pattern, line) for line in self.err), seconds)
        return next(line for line in self.err if re.search(pattern, line))

    def end(self, seconds: float = LIMIT) -> int:
        """Return the exit code and check that nothing of the job is left."""
        deadline = time.monotonic() + seconds
        while self._streams:
            assert time.monotonic() < deadline, self.shown()
            self._read(0.1)
        code = self.job.process.wait(seconds)
        assert self.job.left() == []
        return code

    def _read(self, seconds: float) -> None:
        for stream in select.select([*self._streams], [], [], seconds)[0]:
            data = os.read(stream.fileno(), 1 << 16)
            *lines, self._rest[stream] = (self._rest[stream] + data).split(b"\n")
            self._streams[stream] += [line.decode() for line in lines]
            if not data:
                stream.close()
                del self._streams[stream]

    def shown(self) -> str:
        return "\n".join([*self.err, *[line for line in self.out if " step " not in line]])

    def lines(self, rank: str) -> list[list[str]]:
        """Return the lines of this rank so far, as words without the time."""
        start = f"[{rank}]<stdout>:"
        return [line.removeprefix(start).split()[1:] for line in self.out if line.startswith(start)]

    def pid(self, name: str) -> int:
        """Return the pid of the last process started as `rank 2` or `new worker 4`."""
        line = self.until_line(f"horovodrun: {name} has pid")
        return int(line.split()[-1])

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(name), number)

    def close(self) -> None:
        for pid in self.job.left():  # only after a failure
            linux.send_signal(pid, signal.SIGKILL)
        self.job.process.wait()
        for stream in self._streams:
            stream.close()


@contextmanager
def elastic_job(folder: Path, hosts: str, *arguments: str, **options: dict[str, str]) -> Iterator[ElasticJob]:
    job = ElasticJob(folder, hosts, *arguments, **options)
    try:
        yield job
    finally:
        job.close()
