"""Worker processes of one host. The agent starts them, reads their pipes and collects their exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from horovod.common.contract import reasons
from horovod.common.contract.reasons import LIMIT, PIPE, name_of
from horovod.common.contract.worker_env import make_key_fd, path_of_descriptor
from horovod.runner.agent.messages import (
    CHUNK,
    Exited,
    Output,
    Report,
    Result,
    StartJob,
    StdinReady,
    Stopped,
    Worker,
    WorkerReport,
)
from horovod.runner.agent.state import ranks_of
from horovod.runner.base import linux
from horovod.runner.plan.environment import of_agent, of_host

KEY_FD = b"HOROVOD_KEY_FD"
KEY_FILE = b"HOROVOD_KEY_FILE"
FUNCTION_FD = b"HOROVOD_RUN_FUNCTION_FD"
RESULT_FD = b"HOROVOD_RUN_RESULT_FD"
REPORT_PIPE = PIPE.encode()
STORE_ADDRESS = b"HOROVOD_GLOO_RENDEZVOUS_ADDR"
STORE_PORT = b"HOROVOD_GLOO_RENDEZVOUS_PORT"
# Seconds within which a repeated warning signal is ignored
ONE_WARNING = 10.0
# Grace period in seconds for the children of an exited worker, in elastic jobs
LEFTOVERS = 1.0
# Maximum number of bytes to read after a worker has exited, because one of its children could keep writing
DRAIN_LIMIT = 1 << 20


# Maximum bytes read per call, so that a worker that writes continuously cannot block the agent.
_AT_ONCE = 16 * LIMIT


class ReportReader:
    """Non-blocking pipe through which workers send reports to the agent.

    The agent opens both ends with one descriptor, so that the pipe never reaches an end of file.
    """

    def __init__(self) -> None:
        """Create the pipe. Raises OSError if no pipe can be created."""
        ends = os.pipe2(os.O_CLOEXEC)
        try:
            own = path_of_descriptor(os.getpid(), ends[0])
            self.fd = os.open(own, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            for end in ends:
                os.close(end)
        self.name = name_of(path_of_descriptor(os.getpid(), self.fd), self.fd)
        """Path by which processes of this user can open the pipe."""
        self._rest = b""

    def read(self) -> list[bytes]:
        """Return the reports that have arrived since the last call. Each has at most LIMIT bytes."""
        data = self._rest
        while len(data) < _AT_ONCE:
            try:
                piece = os.read(self.fd, LIMIT)
            except BlockingIOError:
                break
            data += piece
        *lines, rest = data.split(b"\n")
        self._rest = rest if len(rest) <= LIMIT else b""
        return [line for line in lines if len(line) <= LIMIT]


@dataclass
class _Process:
    rank: int
    popen: subprocess.Popen[bytes]
    pipes: dict[int, int] = field(default_factory=dict)  # File descriptors, keyed by stream (1: stdout, 2: stderr)
    result: int | None = None
    running: bool = True


class WorkerTable:
    """Table of all workers on this host. It sends reports to the launcher by calling `report`. No method blocks."""

    def __init__(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._processes: dict[int, _Process] = {}  # Worker processes, keyed by pid
        self._job: StartJob
        # (Environment variable, descriptor) pairs for the files that all workers inherit.
        self._inherited: list[tuple[bytes, int]] = []
        # Time until which warning signals are ignored
        self._deaf_until = 0.0
        # Pids of all processes that have called hvd.init()
        self._called: set[int] = set()
        # Maps the process group of an exited worker to the time at which its remaining child processes are killed
        self._exited: dict[int, float] = {}
        self._key_file = b""
        self._pipe: ReportReader | None = None
        self._store: dict[bytes, bytes] = {}
        self._stdin: int | None = None
        self._stdin_rank = -1
        self._stdin_data = bytearray()
        self._stdin_ends = False

    @property
    def running(self) -> bool:
        """True if any worker is running."""
        return any(process.running for process in self._processes.values())

    @property
    def count(self) -> int:
        """Number of workers that are running."""
        return sum(process.running for process in self._processes.values())

    def prepare(self, job: StartJob, payload: bytes | None, store: tuple[str, int] | None) -> None:
        """Prepare the data that all workers share, before starting workers.

        Args:
            job: The launcher's request to start the job.
            payload: Contents of a file that all workers inherit, or None.
            store: Address at which workers on this host reach the job's store, or None for the launcher's address.
        """
        self._job = job
        if store is not None:
            self._store = {STORE_ADDRESS: store[0].encode(), STORE_PORT: b"%d" % store[1]}
        # The agent keeps the key's descriptor open, because programs such as shells can close inherited descriptors.
        # The training script then opens the key by its path in /proc, which only this user can open.
        key = make_key_fd(job.key)
        self._key_file = path_of_descriptor(os.getpid(), key).encode()
        self._pipe = ReportReader()
        self._inherited = [(KEY_FD, key)]
        if payload is not None:
            self._inherited.append((FUNCTION_FD, linux.memory_file("horovod-function", payload, sealed=True)))
        self._stdin_rank = job.stdin_rank

    def start(
        self,
        job: StartJob,
        payload: bytes | None,
        store: tuple[str, int] | None,
        between: Callable[[], None] = lambda: None,
    ) -> list[tuple[int, int]]:
        """Start all workers of a fixed-size job.

        Args:
            job: The launcher's request to start the job.
            payload: Contents of a file that all workers inherit, or None.
            store: Address at which workers on this host reach the job's store, or None for the launcher's address.
            between: Function to call before each worker is started.

        Returns:
            (rank, pid) pairs of the workers that have started.
        """
        self.prepare(job, payload, store)
        pids = []
        for worker in job.workers:
            between()
            pids += self.start_one(worker)
        for _, fd in self._inherited[1:]:
            os.close(fd)
        return pids

    def start_one(self, worker: Worker) -> list[tuple[int, int]]:
        """Start a worker, and return a list with its rank and pid. If the start fails, return an empty list.

        A failed start is reported to the launcher as `Exited` with status 126 or 127.
        """
        inherited = list(self._inherited)
        result = linux.memory_file("horovod-result", b"", sealed=False) if self._job.results else None
        if result is not None:
            inherited.append((RESULT_FD, result))
        try:
            process = self._spawn(self._job, worker, inherited)
        except (OSError, ValueError) as error:  # ValueError means that an argument or variable contains a NUL byte.
            missing = isinstance(error, FileNotFoundError)
            name = os.fsdecode(self._job.command[0])
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            if "/" in name and os.path.isdir(os.path.join(self._job.directory, os.fsencode(name))):
                reason = "it is a directory"
            hint = " (on this host's PATH)" if missing and "/" not in name else ""
            hint += f"; a Python script is started as `python {name}`" if name.endswith(".py") else ""
            text = f"cannot start {name!r}: {reason}{hint}"
            self._report(Exited(worker.rank, 127 if missing else 126, text))
            if result is not None:
                os.close(result)
            return []
        process.result = result
        self._processes[process.popen.pid] = process
        return [(worker.rank, process.popen.pid)]

    def _spawn(self, job: StartJob, worker: Worker, inherited: list[tuple[bytes, int]]) -> _Process:
        own = of_agent(os.environ, job.env_deny) if job.whole_environment else {}
        own |= of_host(os.environ, job.env_deny) if job.own_environment else {}
        environment = {os.fsencode(name): os.fsencode(value) for name, value in own.items()}
        environment.update(job.environment)
        environment.update(worker.environment)
        environment.update((name, b"%d" % fd) for name, fd in inherited)
        environment[KEY_FILE] = self._key_file
        if self._pipe is not None:
            environment[REPORT_PIPE] = self._pipe.name.encode()
        environment.update(self._store)
        reads_stdin = worker.rank == job.stdin_rank
        terminal = os.open(job.terminal, os.O_RDWR | os.O_NOCTTY) if worker.rank == job.terminal_rank else None
        try:
            popen = self._popen(job, environment, inherited, reads_stdin, terminal, worker.cpus)
        finally:
            if terminal is not None:
                os.close(terminal)
        return self._watched(worker.rank, popen)

    @staticmethod
    def _popen(
        job: StartJob,
        environment: dict[bytes, bytes],
        inherited: list[tuple[bytes, int]],
        reads_stdin: bool,
        terminal: int | None,
        cpus: list[int],
    ) -> subprocess.Popen[bytes]:
        """Start a process whose stderr is a pipe, so that failures can be explained.

        If `terminal` is given, it is the descriptor for stdin and stdout.
        """
        return subprocess.Popen(
            [os.fsencode(sys.executable), *job.command] if job.own_python else job.command,
            env=environment,
            cwd=job.directory or None,
            stdin=terminal if terminal is not None else subprocess.PIPE if reads_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE,
            pass_fds=[fd for _, fd in inherited],
            preexec_fn=linux.dying_with(os.getpid(), cpus, own_group=True),
            bufsize=0,
        )

    def _watched(self, rank: int, popen: subprocess.Popen[bytes]) -> _Process:
        # Duplicate the descriptors, because Popen's file objects would close the originals.
        process = _Process(rank, popen)
        for stream, pipe in ((1, popen.stdout), (2, popen.stderr)):
            if pipe is not None:
                process.pipes[stream] = os.dup(pipe.fileno())
                pipe.close()
        if popen.stdin is not None:
            self._stdin = os.dup(popen.stdin.fileno())
            popen.stdin.close()
            os.set_blocking(self._stdin, False)
        for fd in process.pipes.values():
            os.set_blocking(fd, False)
        return process

    def give_stdin(self, data: bytes) -> None:
        """Queue data for the worker that reads stdin. Empty data marks the end of the input."""
        if self._stdin is None:
            self._report(StdinReady(open=False))
            return
        self._stdin_data += data
        self._stdin_ends = not data

    def feed_stdin(self) -> None:
        """Write queued data to the worker's stdin. Request more from the launcher once all of it has been written."""
        if self._stdin is None or not (self._stdin_data or self._stdin_ends):
            return
        try:
            while self._stdin_data:
                del self._stdin_data[: os.write(self._stdin, self._stdin_data)]
        except BlockingIOError:
            return
        except OSError:  # The worker has closed its stdin.
            self._close_stdin()
            self._report(StdinReady(open=False))
            return
        if self._stdin_ends:
            self._close_stdin()
        else:
            self._report(StdinReady(open=True))

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None
        self._stdin_data.clear()

    def writable_fds(self) -> Iterator[int]:
        """Yield the descriptor of the worker's stdin if the caller must poll it for writability."""
        if self._stdin is not None and self._stdin_data:
            yield self._stdin

    def readable_fds(self) -> Iterator[int]:
        """Yield the file descriptors to poll for input."""
        # Poll the report pipe only while workers are running, because it never reaches an end of file.
        if self._pipe is not None and self.running:
            yield self._pipe.fd
        for process in self._processes.values():
            yield from process.pipes.values()

    def read_output(self, size: int) -> None:
        """Read at most `size` bytes from each pipe that has data, and report them."""
        self._pass_reports()
        for process in self._processes.values():
            for stream in list(process.pipes):
                self._read_pipe(process, stream, size)

    def _pass_reports(self) -> None:
        for report in self._pipe.read() if self._pipe is not None else ():
            if isinstance(called := reasons.decode(report), reasons.Called):
                self._called.add(called.pid)
            self._report(WorkerReport(report))

    def _read_pipe(self, process: _Process, stream: int, size: int) -> int:
        """Read from a pipe and return the number of bytes read. Return 0 at end of file or if no data is available."""
        try:
            data = os.read(process.pipes[stream], size)
        except BlockingIOError:
            return 0
        if data:
            self._report(Output(process.rank, stream, data))
        else:
            os.close(process.pipes.pop(stream))
        return len(data)

    def _drain_process(self, process: _Process) -> None:
        for stream in list(process.pipes):
            total = 0
            while total < DRAIN_LIMIT and stream in process.pipes:
                count = self._read_pipe(process, stream, 1 << 16)
                total += count
                if count == 0:
                    break

    def drain(self) -> None:
        """Report all data left in the pipes of all workers."""
        for process in self._processes.values():
            self._drain_process(process)

    def reap(self, on_other: Callable[[int, int], object]) -> None:
        """Collect the exit codes of all children that have exited, and report exited workers.

        Children include orphans that the agent adopted. A worker's output is reported before its exit, because the
        launcher uses the output to explain the exit.

        Args:
            on_other: Function to call for each child that is not a worker, with its pid and exit code. A negative exit
                code is a signal.
        """
        options = os.WNOHANG | (os.WUNTRACED | os.WCONTINUED if self._lasting else 0)
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._processes.get(pid)
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if process is not None:
                    self._report(Stopped(process.rank, os.WIFSTOPPED(status)))
            elif process is None:
                on_other(pid, os.waitstatus_to_exitcode(status))
            else:
                self._end(process, os.waitstatus_to_exitcode(status))

    @property
    def _lasting(self) -> bool:
        return bool(self._inherited) and self._job.lasting

    def _end(self, process: _Process, code: int) -> None:
        process.running = False
        process.popen.returncode = code
        self._drain_process(process)
        self._pass_reports()
        if process.rank == self._stdin_rank:
            self._close_stdin()
            self._report(StdinReady(open=False))
        self._send_result(process)
        self._report(Exited(process.rank, code))
        if self._lasting:
            self._exited[process.popen.pid] = time.monotonic() + LEFTOVERS

    def kill(self, rank: int) -> None:
        """Send SIGKILL to a running worker and all its descendants."""
        for pid, process in self._processes.items():
            if process.rank == rank and process.running:
                for one in [pid, *linux.descendants(pid)]:
                    linux.send_signal(one, signal.SIGKILL)

    def warn(self, number: int) -> None:
        """Send a warning signal to the worker processes that handle it.

        Ignore a repeated signal within ONE_WARNING seconds. Both the launcher and Slurm send the signal, and a second
        one would terminate the rank.
        """
        now = time.monotonic()
        if now < self._deaf_until:
            return
        self._deaf_until = now + ONE_WARNING
        for pid, process in self._processes.items():
            if process.running:
                for one in [pid, *linux.descendants(pid)]:
                    if linux.catches(one, number):
                        linux.send_signal(one, number)

    def stop_ranks(self, number: int) -> list[int]:
        """Send the first stop signal to all ranks. Return the processes that do not ignore the signal."""
        parents = linux.parents()
        workers = [pid for pid, process in self._processes.items() if process.running]
        self._called &= parents.keys()
        signalled = [pid for pid in ranks_of(workers, self._called, parents) if not linux.ignores(pid, number)]
        for pid in signalled:
            linux.send_signal(pid, number)
            # A process that was suspended by SIGSTOP handles signals only after SIGCONT.
            linux.send_signal(pid, signal.SIGCONT)
        return signalled

    def next_time(self) -> float | None:
        """Return the next time at which `clear` kills leftover child processes, or None if there are none."""
        return min(self._exited.values(), default=None)

    def clear(self, now: float) -> None:
        """Kill the leftover child processes of workers that exited at least LEFTOVERS seconds ago."""
        for group in [pid for pid, at in self._exited.items() if at <= now]:
            del self._exited[group]
            if self._processes[group].running:  # A new worker has reused the pid, so do not kill its processes.
                continue
            for pid in linux.descendants(os.getpid(), group=group):
                linux.send_signal(pid, signal.SIGKILL)
            self._drain_process(self._processes[group])
            for fd in self._processes.pop(group).pipes.values():
                os.close(fd)

    def _send_result(self, process: _Process) -> None:
        if process.result is None:
            return
        offset = 0
        while piece := os.pread(process.result, CHUNK, offset):
            self._report(Result(process.rank, piece))
            offset += len(piece)
        os.close(process.result)
        process.result = None
