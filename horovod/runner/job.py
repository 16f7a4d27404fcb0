"""One job as the launcher runs it: a single-threaded loop between agents, the terminal, signals and the clock."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.common.store import StoreServer
from horovod.common.worker_env import make_key
from horovod.runner import environment, verdict
from horovod.runner.agents import Agent
from horovod.runner.cli import LaunchSettings
from horovod.runner.display import Display
from horovod.runner.errors import AgentError
from horovod.runner.hosts import Slot
from horovod.runner.messages import (
    CHUNK,
    Exited,
    Finished,
    Notice,
    Output,
    Payload,
    Report,
    Result,
    Started,
    StartJob,
    StdinData,
    StdinReady,
    Stop,
    Worker,
)
from horovod.runner.output import OutputQueue, OutputSink, RankFileError, RankFiles
from horovod.runner.signals import SignalQueue
from horovod.runner.stdin import StdinSource

# s after the first failure in which the others may fail by themselves and say why. The engine promises them their
# HorovodInternalError within 2 s.
SETTLE = 2.0
TERM_GRACE = 5.0  # s between SIGTERM and SIGKILL
USER_GRACE = 4.0  # s of that when the user has asked for the end, who is to have the prompt back within 5 s
AGENT_GRACE = 12.0  # s more until an agent that does not finish is given up
LAST_WORDS = 1.0  # s to write what is left when the user has asked for the end and nobody reads
QUEUE_LIMIT = 4 << 20  # bytes of output waiting for the terminal before the agents have to wait


@dataclass
class JobResult:
    """`exit_code` 0 when all is well, else `message` says what happened, `headline` the same without the last words of
    the rank that failed first. `results`: what workers left, by rank."""

    exit_code: int
    message: str = ""
    failed_rank: int | None = None
    results: dict[int, bytearray] = field(default_factory=dict)
    headline: str = ""


class Job:
    """Runs once. `payload` is a file for all workers; `results` asks for what they leave in their result files."""

    def __init__(
        self,
        settings: LaunchSettings,
        environ: Mapping[str, str],
        *,
        stdin: StdinSource | None = None,
        signals: SignalQueue | None = None,
        payload: bytes | None = None,
        results: bool = False,
        output: OutputSink | None = None,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stdin = stdin
        self._signals = signals
        self._payload = payload
        self._want_results = results
        self._size = len(settings.slots)
        self._hosts = {slot.rank: slot.hostname for slot in settings.slots}
        self._agents: list[Agent] = []
        self._queue = output or OutputQueue()
        self._files: RankFiles | None = None
        self._display = Display(
            self._queue,
            self._hosts,
            prefix=settings.prefix,
            timestamp=settings.timestamp,
            with_host=settings.prefix_host,
            collapse=settings.collapse,
        )
        self._tails: dict[int, bytearray] = {slot.rank: bytearray() for slot in settings.slots}
        self._tails_at_stop: dict[int, str] = {}
        self._ends: list[verdict.RankEnd] = []
        self._results: dict[int, bytearray] = {}
        self._start_by: float | None = None
        self._settle_at: float | None = None
        self._give_up_at: float | None = None  # set: stopping
        self._received: list[int] = []  # signals
        self._troubles: list[str] = []  # of agents and of the launcher itself

    def run(self) -> JobResult:
        """Start, watch, end. Whatever happens, nothing of the job runs on afterwards. Raises AgentError, OSError."""
        key = make_key()
        if self._settings.output_filename is not None:
            self._files = RankFiles(self._settings.output_filename, self._size)
        store = StoreServer(key)
        try:
            self._start(key, store.address)
            while not self._over():
                self._wait()
                self._check_clock()
        except KeyboardInterrupt:  # in horovod.run, which leaves signals to its program
            self._stop(USER_GRACE)
            raise
        finally:
            try:
                self._end_agents()
            finally:
                store.close()
                self._close_files()
                self._queue.close()
        return self._conclude()

    def _end_agents(self) -> None:
        for agent in self._agents:  # all at once, for each may need its time
            agent.hang_up()
        for agent in self._agents:
            code = agent.end(AGENT_GRACE)
            if not agent.finished and not agent.notice:
                how = verdict.describe_status(code)
                self._troubles.append(f"the agent on host {agent.host} ended unexpectedly: {how}")

    # Starting

    def _start(self, key: bytes, address: tuple[str, int]) -> None:
        slots: dict[str, list[Slot]] = {}
        for slot in self._settings.slots:
            slots.setdefault(slot.hostname, []).append(slot)
        shared = environment.job_environment(
            self._environ,
            self._settings.variables,
            _loopback(),
            allow=self._settings.env_allow,
            deny=self._settings.env_deny,
        )
        for host, on_host in slots.items():
            agent = Agent(host, on_host)
            self._agents.append(agent)
            for offset in range(0, len(self._payload or b""), CHUNK):
                agent.send(Payload((self._payload or b"")[offset : offset + CHUNK]))
            agent.send(self._start_message(on_host, shared, key, address))
            self._tell(f"agent {agent.pid} on host {host} starts ranks {on_host[0].rank}-{on_host[-1].rank}")
        self._tell(f"command: {' '.join(self._settings.command)}")
        self._tell(f"store on {address[0]}:{address[1]}; variables for the workers: {' '.join(sorted(shared))}")
        self._start_by = time.monotonic() + self._settings.start_timeout

    def _start_message(
        self, slots: list[Slot], shared: Mapping[str, str], key: bytes, address: tuple[str, int]
    ) -> StartJob:
        cores = len(os.sched_getaffinity(0))
        ranks = [slot.rank for slot in slots]
        local = {"OMP_NUM_THREADS": str(environment.omp_threads(cores, len(slots)))}
        return StartJob(
            command=[os.fsencode(word) for word in self._settings.command],
            directory=os.fsencode(os.getcwd()),
            environment=_encode({**local, **shared}),
            workers=[Worker(slot.rank, _encode(environment.worker_environment(slot, *address))) for slot in slots],
            key=key,
            stdin_rank=0 if self._stdin is not None and 0 in ranks else -1,
            results=self._want_results,
        )

    # Waiting

    def _wait(self) -> None:
        """Sleep until something happens, then take what has happened."""
        poll = select.poll()
        events: dict[int, int] = {}
        listening = self._queue.pending < QUEUE_LIMIT or bool(self._received)
        if not listening and self._give_up_at is not None:  # it is our reader that is slow, not the agents
            self._give_up_at = max(self._give_up_at, time.monotonic() + AGENT_GRACE)
        for agent in self._agents:
            if listening and not agent.gone:
                events[agent.reports] = select.POLLIN
            if agent.requests.pending and not agent.requests.broken:
                events[agent.requests.fd] = select.POLLOUT
        if self._signals is not None:
            events[self._signals.fd] = select.POLLIN
        output = self._queue.waiting_for()
        if output is not None:
            events[output] = select.POLLOUT
        stdin = self._stdin.waiting_for() if self._stdin is not None else None
        if stdin is not None:
            events[stdin] = events.get(stdin, 0) | select.POLLIN
        for fd, event in events.items():
            poll.register(fd, event)
        ready = {fd for fd, _ in poll.poll(self._sleep())}
        self._take_signals()
        for agent in self._agents:
            if agent.reports in ready:
                self._take_reports(agent)
            agent.requests.flush()
        if self._stdin is not None and stdin in ready:
            self._send_stdin(self._stdin.read())
        self._queue.write()
        if self._queue.broken and self._give_up_at is None:
            self._troubles.append("nobody reads the output any more (broken pipe)")
            self._stop(TERM_GRACE)

    def _sleep(self) -> float | None:
        """Milliseconds until the next thing the clock has to do; None: nothing."""
        clocks = (self._start_by, self._settle_at, self._give_up_at, self._display.next_due())
        times = [at for at in clocks if at is not None]
        if self._stdin is not None and self._stdin.in_background:
            times.append(time.monotonic() + 1.0)  # it may be brought to the foreground, which nothing tells
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _check_clock(self) -> None:
        now = time.monotonic()
        self._display.tick(now)
        if self._start_by is not None and now >= self._start_by:
            self._start_by = None
            self._troubles.append(f"the workers were not started within {self._settings.start_timeout:g} s")
            self._stop(0)
        if self._settle_at is not None and now >= self._settle_at:
            self._settle_at = None
            self._stop(TERM_GRACE)

    def _over(self) -> bool:
        if all(agent.gone or agent.finished for agent in self._agents):
            self._display.flush()
            if self._queue.waiting_for() is None:
                return True
            if not self._received:  # as any program in a pipeline, wait for a slow reader
                self._give_up_at = None
                return False
            limit = time.monotonic() + LAST_WORDS
            self._give_up_at = min(self._give_up_at or limit, limit)
        return self._give_up_at is not None and time.monotonic() >= self._give_up_at

    # What happens

    def _take_signals(self) -> None:
        for number in self._signals.take() if self._signals is not None else ():
            self._received.append(number)
            name = signal.Signals(number).name
            if len(self._received) == 1:
                self._say(f"{name} received: stopping {self._size} process{'es' if self._size > 1 else ''}")
                self._stop(USER_GRACE)
            else:
                self._say(f"{name} received again: killing")
                self._stop(0)

    def _stop(self, grace: float) -> None:
        """End all workers; a second call can only make it sooner."""
        if not self._tails_at_stop:
            self._tails_at_stop = {rank: tail.decode(errors="replace") for rank, tail in self._tails.items()}
        self._settle_at = None
        give_up = time.monotonic() + grace + AGENT_GRACE
        self._give_up_at = give_up if self._give_up_at is None else min(self._give_up_at, give_up)
        for agent in self._agents:
            agent.send(Stop(grace))

    def _take_reports(self, agent: Agent) -> None:
        try:
            reports = agent.receive()
        except AgentError as error:
            self._troubles.append(f"the agent on host {agent.host} sent {error}")
            agent.gone = True
            self._stop(0)
            return
        for report in reports:
            self._take(agent, report)
        if agent.gone and not agent.finished:
            self._stop(TERM_GRACE)  # those on other hosts

    def _take(self, agent: Agent, report: Report) -> None:
        if isinstance(report, Output):
            self._show(report)
        elif isinstance(report, Exited):
            self._end_rank(report)
        elif isinstance(report, Started):
            self._start_by = None
            self._tell(f"processes on host {agent.host}: {', '.join(f'rank {r} pid {p}' for r, p in report.pids)}")
        elif isinstance(report, StdinReady) and self._stdin is not None:
            if report.open:
                self._stdin.wanted = True
            else:
                self._stdin.close()
        elif isinstance(report, Result):
            self._results.setdefault(report.rank, bytearray()).extend(report.data)
        elif isinstance(report, Notice):
            agent.notice = report.text
            self._troubles.append(f"the agent on host {agent.host} ends the job: {report.text}")
            self._stop(TERM_GRACE)
        elif isinstance(report, Finished):
            agent.finished = True
            if report.survivors:
                self._troubles.append(f"processes on host {agent.host} that SIGKILL did not end: {report.survivors}")

    def _show(self, report: Output) -> None:
        rank, stream = report.rank, report.stream
        self._write_file(report)
        if stream == 2:
            tail = self._tails[rank]
            tail += report.data
            del tail[: -verdict.TAIL_LIMIT]
        self._display.show(rank, stream, report.data, time.monotonic())

    def _write_file(self, report: Output) -> None:
        if self._files is None:
            return
        try:
            self._files.write(report.rank, report.stream, report.data)
        except RankFileError as error:  # say, the disk is full: an incomplete record is worse than no job
            self._troubles.append(str(error))
            self._close_files()
            self._stop(TERM_GRACE)

    def _close_files(self) -> None:
        files, self._files = self._files, None
        try:
            if files is not None:
                files.close()
        except RankFileError as error:
            self._troubles.append(str(error))

    def _end_rank(self, report: Exited) -> None:
        rank = report.rank
        self._display.finish(rank, time.monotonic())
        self._ends.append(
            verdict.RankEnd(
                rank,
                self._hosts[rank],
                report.status,
                self._tails[rank].decode(errors="replace"),
                stopped=bool(self._tails_at_stop),
                tail_at_stop=self._tails_at_stop.get(rank),
                error=report.error,
            )
        )
        self._tell(f"rank {rank} ended: {report.error or verdict.describe_status(report.status)}")
        if report.status != 0 and self._settle_at is None and self._give_up_at is None:
            self._settle_at = time.monotonic() + SETTLE

    def _send_stdin(self, data: bytes | None) -> None:
        if data is None:
            return
        for agent in self._agents:
            if any(slot.rank == 0 for slot in agent.slots):
                agent.send(StdinData(data))

    # Words

    def _say(self, text: str) -> None:
        lines = "".join(f"horovodrun: {line}\n" for line in text.splitlines())
        self._queue.put(2, lines.encode(errors="surrogateescape"))

    def _tell(self, text: str) -> None:
        if self._settings.verbose:
            self._say(text)

    def _conclude(self) -> JobResult:
        judged = verdict.judge(self._ends)
        texts = list(self._troubles)
        if judged is not None:
            texts.append(judged.text)
        message = "\n".join(texts)
        headline = "\n".join([*self._troubles, judged.headline] if judged is not None else self._troubles)
        if self._received:
            code = 128 + self._received[0]
            message = "\n".join([*texts, f"stopped by {signal.Signals(self._received[0]).name}"])
        elif judged is not None:
            code = judged.exit_code
        elif self._queue.broken:
            code = 128 + signal.SIGPIPE
        else:
            code = 1 if self._troubles else 0
        return JobResult(code, message, judged.rank if judged is not None else None, self._results, headline)


def _loopback() -> str | None:
    """The interface of a job on one machine when the user names none."""
    return "lo" if "lo" in (name for _, name in socket.if_nameindex()) else None


def _encode(variables: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(os.fsencode(name), os.fsencode(value)) for name, value in variables.items()]
