"""Agent process that starts, monitors and stops the workers of one host.

It talks to the launcher over stdin and stdout. `state` documents the phases of a job on a host.

A second process, the guard, kills all workers if the agent itself is killed with SIGKILL. If any process dies, the
guard or the agent adopts its children, even daemons, so no process of the job can escape:

    guard (subreaper)           kills all processes below it when the agent has exited
      agent (subreaper)         runs the loop of this file; stops when the guard dies or the launcher's pipe closes
        worker, worker, ...     each in its own process group; gets SIGKILL when the agent dies
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Collection, Mapping
from types import FrameType

import msgspec

from horovod.common.contract.kernel import MemoryFileError
from horovod.runner.agent import messages
from horovod.runner.agent.messages import (
    Finished,
    FrameReader,
    FrameWriter,
    Heartbeat,
    Hello,
    KillWorker,
    Notice,
    PassOn,
    Payload,
    Request,
    Spawn,
    Started,
    StartJob,
    StartWorker,
    StdinData,
    StdinReady,
    Stop,
    StreamData,
    StreamEnd,
    Watch,
    Worker,
)
from horovod.runner.agent.relay import EACH_LASTING, Streams
from horovod.runner.agent.state import GIVE_UP, TERM_GRACE, HostPhase, HostState
from horovod.runner.agent.workers import WorkerTable
from horovod.runner.base import linux
from horovod.runner.base.job_result import AgentError
from horovod.runner.base.linux import WARNING


def with_gpus(job: StartJob, environ: Mapping[str, str], allowed: Collection[int]) -> StartJob:
    """Assign GPUs and CPUs of this host to each worker, if `--gpus-per-worker` or `--gpu-affinity` requests it.

    Args:
        job: The launcher's request to start the job.
        environ: Environment of the agent. Its CUDA_VISIBLE_DEVICES limits the GPUs.
        allowed: CPUs that can be assigned.

    Returns:
        The request with the assigned GPUs and CPUs.

    Raises:
        AgentError: If the host has too few GPUs, or the CPUs near them are unknown.
    """
    if not job.gpus_per_worker and not job.gpu_affinity:
        return job
    # Import lazily, because most jobs do not assign GPUs.
    from horovod.common.devices import nvml, visible

    survey = nvml.survey()
    workers, count = job.workers, len(job.workers)
    try:
        if job.gpus_per_worker:
            given = visible.cut(environ, survey, count, job.gpus_per_worker)
            workers = [
                msgspec.structs.replace(worker, environment=[*worker.environment, *_encoded(own)])
                for worker, own in zip(workers, given, strict=True)
            ]
        if job.gpu_affinity:
            gpus = visible.of_workers(environ, survey, count, job.gpus_per_worker)
            cpus = [visible.binding(own, allowed) for own in gpus]
            workers = [msgspec.structs.replace(worker, cpus=own) for worker, own in zip(workers, cpus, strict=True)]
    except visible.VisibleError as error:
        raise AgentError(str(error)) from None
    except visible.AffinityError as error:
        raise AgentError(f"--gpu-affinity: {error}") from None
    return msgspec.structs.replace(job, workers=workers)


def _encoded(variables: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(os.fsencode(name), os.fsencode(value)) for name, value in variables.items()]


# Seconds between two scans of the process tree while the job is stopping
TICK = 0.05
# If more bytes than this are queued for the launcher, the agent stops reading worker output.
OUTPUT_LIMIT = 4 << 20
READ_SIZE = 1 << 16


class Agent:
    """Event loop of the agent, which polls pipes and signals.

    It scans the process tree only while the job is stopping.
    """

    def __init__(self, requests: int, reports: int) -> None:
        self._requests: int | None = requests
        self._reader: FrameReader[Request] = FrameReader(Request)
        self._writer = FrameWriter(reports)
        self._workers = WorkerTable(self._writer.send)
        self._streams = Streams(self._writer.send)
        self._payload = bytearray()
        self._state = HostState()
        # True if this agent relays its workers' connections to the store
        self._relays = False
        self._limit = 0.0  # Seconds without a message after which the launcher is considered lost, or 0 for no limit
        self._last_heard = self._looked = time.monotonic()
        self._next_heartbeat = 0.0  # Time at which the next heartbeat is due
        self._signals: list[int] = []
        os.set_blocking(requests, False)
        self._wake, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal by queueing it for the event loop."""
        self._signals.append(number)

    def run(self) -> int:
        """Serve one job until it has ended. Return the exit code of the agent, which is 0 unless a request failed."""
        code = 0
        self._writer.send(Hello(messages.gather()))
        while True:
            self._wait()
            try:
                self._obey_signals()
                self._read_requests()
            except (AgentError, MemoryFileError) as error:
                self._end_by_itself(str(error))
                code = 1
            self._watch()
            self._workers.feed_stdin()
            listening = self._writer.pending < OUTPUT_LIMIT or self._writer.broken
            if listening:
                self._workers.read_output(READ_SIZE)
            self._streams.serve(listening)
            self._workers.reap(self._streams.reaped)
            # Kill child processes that outlived their workers. While the job is stopping, all processes get signals.
            if not self._state.stopping:
                self._workers.clear(time.monotonic())
            self._writer.flush()
            if self._over():
                return code

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._requests is not None:
            poll.register(self._requests, select.POLLIN)
        if self._writer.pending:
            poll.register(self._writer.fd, select.POLLOUT)
        if self._writer.pending < OUTPUT_LIMIT:
            for fd in (*self._workers.readable_fds(), *self._streams.readable_fds()):
                poll.register(fd, select.POLLIN)
        wanted = dict.fromkeys((*self._workers.writable_fds(), *self._streams.writable_fds()), select.POLLOUT)
        for fd in self._streams.readable_fds() if self._writer.pending < OUTPUT_LIMIT else ():
            if fd in wanted:  # A socket can wait for input and output at the same time.
                wanted[fd] |= select.POLLIN
        for fd, event in wanted.items():
            poll.register(fd, event)
        seconds = self._patience()
        poll.poll(None if seconds is None else seconds * 1000)
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass

    def _patience(self) -> float | None:
        """Return the number of seconds until the next timed action, or None if none is scheduled."""
        if self._state.changes:
            return TICK
        due = self._workers.next_time()
        times = [] if due is None else [max(0.0, due - time.monotonic()) + 0.001]
        if self._limit:
            times.append(self._limit / 4)
        elif self._state.phase is HostPhase.FINISHED:
            times.append(TICK * 10)
        return min(times, default=None)

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == WARNING:
                self._workers.warn(number)
            elif number != signal.SIGCHLD:
                self._end_by_itself(f"it received {signal.Signals(number).name}")

    def _watch(self) -> None:
        """Send heartbeats, and stop the job if the launcher has been silent for too long.

        Time during which this loop was blocked is not counted as silence.
        """
        now = time.monotonic()
        if now - self._looked > max(1.0, self._limit / 2):
            self._last_heard = now
        self._looked = now
        self._send_heartbeats()
        if self._limit and self._requests is not None and now - self._last_heard > self._limit:
            self._lose_launcher()

    def _send_heartbeats(self) -> None:
        """Send a heartbeat if one is due.

        This function also runs between worker starts, which can be slow on a busy host.
        """
        now = time.monotonic()
        if self._limit and self._requests is not None and now >= self._next_heartbeat:
            self._next_heartbeat = now + self._limit / 4
            if not self._writer.pending:  # Any message serves as a heartbeat, so Alive is sent only if none is queued.
                self._writer.send(Heartbeat())
            self._writer.flush()

    def _lose_launcher(self) -> None:
        """Stop the job, because the launcher was killed or cannot be reached."""
        self._limit = 0
        self._writer.broken = True
        self._check_silence()

    def _check_silence(self) -> None:
        """Stop the job, because the launcher has closed the request pipe. It might still read this agent's reports."""
        self._requests = None
        self._streams.hang_up()
        self._stop(TERM_GRACE)

    def _end_by_itself(self, reason: str) -> None:
        self._writer.send(Notice(reason))
        self._stop(TERM_GRACE)

    def _stop(self, grace: float, first: int = 0) -> None:
        self._state.stop(grace, time.monotonic(), first)

    def _read_requests(self) -> None:
        while self._requests is not None:
            try:
                data = os.read(self._requests, READ_SIZE)
            except BlockingIOError:
                return
            self._last_heard = time.monotonic()
            if not data:
                self._check_silence()
                return
            for message in self._reader.feed(data):
                self._obey(message)

    def _obey(self, message: Request) -> None:
        if isinstance(message, Payload):
            self._payload += message.data
        elif isinstance(message, StartJob):
            self._start(message)
        elif isinstance(message, StartWorker):
            self._start_one(message.worker)
        elif isinstance(message, KillWorker):
            self._workers.kill(message.rank)
        elif isinstance(message, PassOn):
            self._workers.warn(message.signal)
        elif isinstance(message, StdinData):
            self._workers.give_stdin(message.data)
        elif isinstance(message, Stop):
            self._stop(message.grace, message.first)
        elif isinstance(message, Watch):
            self._limit = message.limit
        elif isinstance(message, Spawn):
            self._streams.spawn(message)
        elif isinstance(message, (StreamData, StreamEnd)):
            self._streams.take(message)

    def _start(self, job: StartJob) -> None:
        linux.check_proc()
        if not self._state.start(job.lasting):
            raise AgentError("a second StartJob")
        self._check_directory(job.directory)
        job = with_gpus(job, os.environ, os.sched_getaffinity(0))
        address = self._streams.listen(len(job.workers)) if job.relay else None
        if job.lasting:
            self._relays = job.relay
            self._workers.prepare(job, bytes(self._payload) or None, address)
            return
        pids = self._workers.start(job, bytes(self._payload) or None, address, self._send_heartbeats)
        self._payload.clear()
        self._writer.send(Started(pids))
        if job.stdin_rank >= 0:
            self._writer.send(StdinReady(open=True))

    def _start_one(self, worker: Worker) -> None:
        """Start one worker of an elastic job, unless the job is stopping."""
        if self._state.phase is not HostPhase.RUNNING:
            return
        if self._relays:
            self._streams.listen(self._workers.count + 1, EACH_LASTING)
        if pids := self._workers.start_one(worker):
            self._writer.send(Started(pids))

    def _check_directory(self, directory: bytes) -> None:
        try:
            os.stat((directory or b".") + b"/.")
        except OSError as error:
            raise AgentError(
                f"the working directory {os.fsdecode(directory)!r} of the launcher cannot be used there: "
                f"{error.strerror}; make it on every host, or start from a shared directory"
            ) from None

    def _over(self) -> bool:
        """Advance the shutdown of the job.

        Return True once all processes have exited and the launcher has all reports.
        """
        now = time.monotonic()
        step = self._state.advance(now, self._workers.running, self._alive)
        if step.first:
            self._state.confirm_signalled(self._workers.stop_ranks(step.first))
        for pid in step.term:
            linux.send_signal(pid, signal.SIGTERM)
            # A process that was suspended by SIGSTOP handles signals only after SIGCONT.
            linux.send_signal(pid, signal.SIGCONT)
        for pid in step.kill:
            linux.send_signal(pid, signal.SIGKILL)
        if step.survivors is not None:
            self._finish(list(step.survivors))
        return self._state.phase is HostPhase.FINISHED and self._delivered(now)

    def _alive(self) -> list[int]:
        """Return all descendants of the agent, except the commands that connect to agents on other hosts."""
        return linux.descendants(os.getpid(), without=self._streams.pids)

    def _finish(self, survivors: list[int]) -> None:
        """Send the workers' remaining output and the Finished report, and close all streams."""
        self._workers.reap(self._streams.reaped)
        self._workers.drain()
        self._streams.serve(listening=True)
        self._streams.close()
        self._writer.send(Finished(survivors))

    def _delivered(self, now: float) -> bool:
        """Return True if the launcher has received all reports, including those that this agent relays.

        If the launcher is lost, the function returns True after a timeout.
        """
        if not self._streams.pids and (not self._writer.pending or self._writer.broken):
            return True
        # The launcher is still connected, so wait until it has read everything, even if it is slow.
        if self._requests is not None:
            return False
        if not self._state.gives_up(now):
            return False
        self._streams.kill()
        return True


def _run_agent(guard: int) -> int:
    linux.die_with_parent(guard, signal.SIGTERM)
    linux.become_subreaper()
    # Replace descriptors 0 and 1 by the null device, so that a stray print cannot corrupt messages to the launcher.
    linux.raise_descriptor_limit()
    requests, reports = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    agent = Agent(requests, reports)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, WARNING):
        signal.signal(number, agent.on_signal)
    # Restore the default handlers. Workers would otherwise inherit the signals that the launcher ignores.
    for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    return agent.run()


def _guard(agent: int) -> int:
    """Wait until the agent exits, then kill all its descendants. The launcher detects the exit when stdout closes."""
    os.close(0)
    status = 0
    while True:
        pid, wait_status = os.waitpid(-1, 0)
        if pid == agent:
            status = os.waitstatus_to_exitcode(wait_status)
            break
    deadline = time.monotonic() + GIVE_UP
    while time.monotonic() < deadline:
        remaining = linux.descendants(os.getpid())
        for pid in remaining:
            linux.send_signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if not remaining:
            break
        time.sleep(0.01)
    return status if status >= 0 else 128 - status


def main() -> None:
    """Fork the agent process, and monitor it from this process until the agent exits."""
    linux.become_subreaper()
    # Slurm sends its warning signal to all processes of a step, and the signal must not kill the guard or the agent.
    # Install a handler instead of ignoring the signal, because workers would inherit an ignored signal.
    signal.signal(WARNING, lambda *_: None)
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _run_agent(guard)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os._exit(_guard(pid))


if __name__ == "__main__":
    main()
