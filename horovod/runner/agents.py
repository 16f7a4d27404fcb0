"""The launcher's end of one agent. The seam for other hosts: an agent elsewhere differs only in how it is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import horovod
from horovod.runner.errors import AgentError
from horovod.runner.hosts import Slot
from horovod.runner.messages import FrameReader, FrameWriter, Report, Request

READ_SIZE = 1 << 18
# The current directory stays out of the agent's path: a user's queue.py there must not become a library of ours.
_BOOT = (
    "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; sys.path.append(sys.argv[1]); "
    "from horovod.runner.agent import main; main()"
)


def agent_command() -> list[str]:
    """How an agent is started; nothing of the job is on its command line."""
    return [sys.executable, "-c", _BOOT, str(Path(horovod.__file__).resolve().parent.parent)]


class Agent:
    """A running agent: messages in both directions, and its end. Only `end` waits, with a deadline."""

    def __init__(self, host: str, slots: Sequence[Slot]) -> None:
        self.host = host
        self.slots = list(slots)
        self.finished = False  # it has said that nothing of the job runs there any more
        self.gone = False  # its pipe is closed
        self.notice = ""  # why it ends the job by itself
        try:
            # A session of its own: Ctrl-C in the terminal reaches only the launcher, which decides what it means.
            self._process = subprocess.Popen(
                agent_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
            )
        except OSError as error:
            raise AgentError(f"the agent on host {host} cannot be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.reports = self._process.stdout.fileno()
        os.set_blocking(self.reports, False)
        self._reader: FrameReader[Report] = FrameReader(Report)
        self.requests = FrameWriter(self._process.stdin.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Request) -> None:
        self.requests.send(message)

    def receive(self) -> list[Report]:
        """The messages that have arrived. Sets `gone` at the end of the stream."""
        try:
            data = os.read(self.reports, READ_SIZE)
        except BlockingIOError:
            return []
        if not data:
            self.gone = True
            return []
        return self._reader.feed(data)

    def hang_up(self) -> None:
        """Close the pipe of requests, on which the agent ends everything."""
        self.requests.broken = True
        if self._process.stdin is not None:
            self._process.stdin.close()

    def end(self, timeout: float) -> int:
        """Hang up, wait until the agent has ended, at most `timeout` seconds, then kill it. Returns its exit code."""
        self.hang_up()
        process = self._process
        assert process.stdout is not None
        deadline = time.monotonic() + timeout
        while not self.gone and time.monotonic() < deadline:  # its reports must not block it
            try:
                self.gone = os.read(self.reports, READ_SIZE) == b""
            except BlockingIOError:
                time.sleep(0.01)
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(5)
        process.stdout.close()
        return process.returncode
