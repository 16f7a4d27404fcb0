"""The launcher's main loop: one job from its start to the verdict."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping

from horovod.common.contract.worker_env import make_key
from horovod.common.store.server import StoreServer
from horovod.runner.base.exit_status import describe_status
from horovod.runner.base.job_result import JobResult
from horovod.runner.base.signals import SignalQueue
from horovod.runner.job.orders import Orders, make_fleet, store_connections
from horovod.runner.job.progress import Host, Progress, State, late
from horovod.runner.job.stdin import StdinSource
from horovod.runner.job.store_relay import StoreRelay
from horovod.runner.job.strangers import Strangers
from horovod.runner.output.output import OutputSink, RankFileError
from horovod.runner.output.screen import Screen
from horovod.runner.plan.settings import LaunchSettings
from horovod.runner.protocol.messages import (
    Exited,
    Finished,
    Notice,
    Output,
    Report,
    Result,
    Said,
    Started,
    StdinData,
    StdinReady,
    Stop,
    StreamData,
    StreamEnd,
    StreamOpen,
)
from horovod.runner.reach.agents import Agent
from horovod.runner.reach.fleet import Trouble
from horovod.runner.verdict import verdict
from horovod.runner.verdict.endings import Endings

# s after the first failure in which the others may fail by themselves and say why. The engine promises them their
# HorovodInternalError within 2 s.
SETTLE = 2.0
TERM_GRACE = 5.0  # s between SIGTERM and SIGKILL
USER_GRACE = 4.0  # s of that when the user has asked for the end, who is to have the prompt back within 5 s
AGENT_GRACE = 12.0  # s more until an agent that does not finish is given up
LAST_WORDS = 1.0  # s to write what is left when the user has asked for the end and nobody reads
QUEUE_LIMIT = 4 << 20  # bytes of output waiting for the terminal before the agents have to wait


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
        self._output = output
        self._size = len(settings.slots)
        self._hosts = {slot.rank: slot.hostname for slot in settings.slots}
        self._started: set[str] = set()  # hosts that have started their processes
        self._launched = False  # every agent has been told what to start
        self._endings = Endings(self._hosts)
        self._strangers = Strangers(self._size, self._users_command())
        self._results: dict[int, bytearray] = {}
        self._start_by: float | None = None
        self._settle_at: float | None = None
        self._give_up_at: float | None = None  # set: stopping
        self._received: list[int] = []  # signals
        self._troubles: list[str] = []  # of agents and of the launcher itself
        self._lost: list[str] = []  # hosts that vanished

    def _users_command(self) -> list[str]:
        """None where it is ours, or where somebody with a debugger takes his time."""
        settings = self._settings
        return [] if self._payload or settings.own_python or settings.debug_rank is not None else settings.command

    def run(self) -> JobResult:
        """Start, watch, end. Whatever happens, nothing of the job runs on afterwards. Raises AgentError, OSError."""
        self._key = make_key()
        self._fleet = make_fleet(self._settings, self._environ)
        limit = store_connections(self._fleet)
        self._screen = Screen(self._settings, self._output, told=self._want_results)
        self._store = StoreServer(self._key)
        self._progress = Progress(self._hosts, self._screen.queue.rewrites)
        self._relay = StoreRelay(self._store.address, limit)
        try:
            self._start_by = time.monotonic() + self._settings.start_timeout
            self._take_troubles(self._fleet.start())
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
                self._relay.close()
                self._store.close()
                self._close_screen()
        return self._conclude()

    def _close_screen(self) -> None:
        try:
            self._screen.close()
        except RankFileError as error:
            self._troubles.append(str(error))

    def _end_agents(self) -> None:
        codes = self._fleet.end(AGENT_GRACE)
        for agent in self._fleet.agents:
            if not agent.finished and not agent.notice and not agent.lost:
                code = codes.get(agent.host)
                how = "did not end in time" if code is None else f"ended: {describe_status(code)}"
                self._troubles.append(f"the agent on host {agent.host} ({agent.ranks}) {how}")

    # Starting

    def _launch(self) -> None:
        """Every host is there: tell each what to start."""
        self._launched = True
        self._start_by = time.monotonic() + self._settings.start_timeout
        agents = self._fleet.agents
        orders = Orders(self._settings, self._environ, agents, self._key, self._store.address, self._payload)
        if orders.gives_terminal:  # a rank reads there, and a line that is rewritten would be in its way
            self._stdin, self._screen.queue.rewrites = None, False
        for remark in orders.remarks():
            self._screen.say(remark)
        for agent in agents:
            for message in orders.messages(agent, stdin=self._stdin is not None, results=self._want_results):
                agent.send(message)
            self._tell(f"the agent on host {agent.host} starts {agent.ranks}")
        self._tell(f"command: {' '.join(self._settings.whole_command)}")
        host, port = self._store.address
        names = " ".join(sorted(orders.shared_environment(remote=False)))
        self._tell(f"store on {host}:{port}; variables for the workers: {names}")

    # Waiting

    def _listening(self) -> bool:
        """Do we take reports? Not while our own reader is slow."""
        return self._screen.queue.pending < QUEUE_LIMIT or bool(self._received)

    def _wait(self) -> None:
        """Sleep until something happens, then take what has happened."""
        listening = self._listening()
        if not listening and self._give_up_at is not None:  # it is our reader that is slow, not the agents
            self._give_up_at = max(self._give_up_at, time.monotonic() + AGENT_GRACE)
        events = {**self._fleet.events(listening), **self._relay.events()}
        if self._signals is not None:
            events[self._signals.fd] = select.POLLIN
        output = self._screen.queue.waiting_for()
        if output is not None:
            events[output] = select.POLLOUT
        stdin = self._stdin.waiting_for() if self._stdin is not None else None
        if stdin is not None:
            events[stdin] = events.get(stdin, 0) | select.POLLIN
        poll = select.poll()
        for fd, event in events.items():
            poll.register(fd, event)
        ready = {fd for fd, _ in poll.poll(self._sleep())}
        self._take_signals()
        if listening:
            self._take_troubles(self._fleet.receive(ready, self._take))
        self._fleet.flush()
        self._relay.serve(ready)
        if self._stdin is not None and stdin in ready:
            self._send_stdin(self._stdin.read())
        self._screen.queue.write()
        if self._screen.queue.broken and self._give_up_at is None:
            self._troubles.append("nobody reads the output any more (broken pipe)")
            self._stop(TERM_GRACE)

    def _sleep(self) -> float | None:
        """Milliseconds until the next thing the clock has to do; None: nothing."""
        clocks = (
            self._start_by,
            self._settle_at,
            self._give_up_at,
            self._fleet.next_time(),
            self._screen.display.next_due(),
            self._progress.next_time(),
            self._strangers.next_time(),
            time.monotonic() + 1.0 if self._forming() else None,
        )
        times = [at for at in clocks if at is not None]
        if self._stdin is not None and self._stdin.in_background:
            times.append(time.monotonic() + 1.0)  # it may be brought to the foreground, which nothing tells
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _check_clock(self) -> None:
        now = time.monotonic()
        self._screen.display.tick(now)
        self._take_troubles(self._fleet.look(now, self._listening()))
        if not self._launched and self._give_up_at is None and self._fleet.connected:
            self._launch()
        if self._start_by is not None and now >= self._start_by:
            self._start_by = None
            self._troubles.append(self._late())
            self._stop(0)
        if self._settle_at is not None and now >= self._settle_at:
            self._settle_at = None
            if self._fleet.suspects(now) and not verdict.has_culprit(self._endings.ends):
                self._settle_at = now + SETTLE / 4  # a host may be lost, which explains all that has been seen
            else:
                self._stop(TERM_GRACE)
        if remark := self._strangers.early(now, self._called()):
            self._screen.say(remark)
        self._show_progress(now)

    def _called(self) -> bool:
        """Has any rank called hvd.init()? It reports it, and comes to the store if it does not want to be alone."""
        return bool(self._endings.called or self._store.completed or self._store.waiting())

    def _forming(self) -> bool:
        """Have the ranks not met yet? They tell the store, which does not wake us."""
        return self._size > 1 and self._launched and self._give_up_at is None and self._store.completed < 2

    def _show_progress(self, now: float) -> None:
        shown = self._progress.update(now, self._state())
        self._screen.queue.status(shown.status)
        if shown.line:
            self._screen.say(shown.line)

    def _state(self) -> State:
        if self._give_up_at is not None:
            return State()
        if not self._launched:
            return State(connecting=[self._waited(agent) for agent in self._fleet.waiting])
        late = [self._waited(agent) for agent in self._fleet.agents if agent.host not in self._started]
        return State(starting=late, groups=self._store.waiting() if self._forming() else {})

    def _waited(self, agent: Agent) -> Host:
        return Host(agent.host, [slot.rank for slot in agent.slots], self._fleet.failure_of(agent))

    def _late(self) -> str:
        waiting = [
            (agent.host, agent.ranks, self._fleet.failure_of(agent), agent.remote) for agent in self._fleet.waiting
        ]
        return late(waiting, self._settings.start_timeout)

    def _over(self) -> bool:
        if all(agent.gone or agent.finished for agent in self._fleet.agents):
            self._screen.display.flush()
            self._screen.queue.status("")
            self._screen.queue.end_bars()
            if self._screen.queue.waiting_for() is None:
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
            if number == signal.SIGTSTP:
                self._suspend()
                continue
            self._received.append(number)
            name = signal.Signals(number).name
            if len(self._received) == 1:
                self._screen.say(f"{name} received: stopping {self._size} process{'es' if self._size > 1 else ''}")
                self._stop(USER_GRACE)
            else:
                self._screen.say(f"{name} received again: killing")
                self._stop(0)

    def _suspend(self) -> None:
        """Ctrl-Z stops only the launcher; the agents must not take its silence for its end."""
        self._fleet.watch(active=False)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._fleet.watch(active=True)

    def _stop(self, grace: float) -> None:
        """End all workers; a second call can only make it sooner."""
        if not self._endings.stopping:
            self._endings.stop(self._screen.tails())
        self._settle_at = self._start_by = None
        give_up = time.monotonic() + grace + AGENT_GRACE
        self._give_up_at = give_up if self._give_up_at is None else min(self._give_up_at, give_up)
        self._fleet.abandon_waiting()
        for agent in self._fleet.agents:
            agent.send(Stop(grace))

    def _take_troubles(self, troubles: list[Trouble]) -> None:
        for trouble in troubles:
            (self._lost if trouble.lost else self._troubles).append(trouble.text)
            self._stop(TERM_GRACE if self._launched else 0)

    def _take(self, agent: Agent, report: Report) -> None:
        if isinstance(report, Output):
            self._show(report)
        elif isinstance(report, (StreamOpen, StreamData, StreamEnd)):
            self._take_stream(agent, report)
        elif isinstance(report, Said):
            self._endings.hear(report.report)
        elif isinstance(report, Exited):
            self._end_rank(report)
        elif isinstance(report, Started):
            self._start_by = None
            self._started.add(agent.host)
            if len(self._started) == len(self._fleet.agents):
                self._strangers.started(time.monotonic())
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
            self._troubles.append(f"the agent on host {agent.host} ({agent.ranks}) ends the job: {report.text}")
            self._stop(TERM_GRACE)
        elif isinstance(report, Finished):
            agent.finished = True
            if report.survivors:
                self._troubles.append(f"processes on host {agent.host} that SIGKILL did not end: {report.survivors}")

    def _take_stream(self, agent: Agent, report: StreamOpen | StreamData | StreamEnd) -> None:
        known = self._relay.refused
        self._relay.take(agent, report)
        if self._relay.refused != known:
            self._screen.say(
                f"warning: more connections to the job's store than its ranks need come from host {agent.host}; "
                "one was refused"
            )

    def _show(self, report: Output) -> None:
        try:
            self._screen.show(report)
        except RankFileError as error:  # say, the disk is full: an incomplete record is worse than no job
            self._troubles.append(str(error))
            self._stop(TERM_GRACE)

    def _end_rank(self, report: Exited) -> None:
        rank = report.rank
        self._screen.finish(rank)
        self._endings.end(report, self._screen.tail(rank))
        self._tell(f"rank {rank} ended: {report.error or describe_status(report.status)}")
        if report.status != 0 and self._settle_at is None and self._give_up_at is None:
            self._settle_at = time.monotonic() + SETTLE

    def _send_stdin(self, data: bytes | None) -> None:
        if data is None:
            return
        for agent in self._fleet.agents:
            if any(slot.rank == 0 for slot in agent.slots):
                agent.send(StdinData(data))

    # Words

    def _tell(self, text: str) -> None:
        if self._settings.verbose:
            self._screen.say(text)

    def _conclude(self) -> JobResult:
        judged = verdict.judge(self._endings.ends)
        texts = [*self._lost, *self._troubles]
        headlines = list(texts)
        failed_rank = None
        if judged is not None and not (texts and judged.victim):
            texts.append(judged.text)
            headlines.append(judged.headline)
            failed_rank = judged.rank
        message, headline = "\n".join(texts), "\n".join(headlines)
        if self._received:
            code = 128 + self._received[0]
            message = "\n".join([*texts, f"stopped by {signal.Signals(self._received[0]).name}"])
        elif judged is not None:
            code = judged.exit_code
        elif self._screen.queue.broken:
            code = 128 + signal.SIGPIPE
        else:
            code = 1 if texts else 0
            message = message or self._strangers.late(self._called())
        return JobResult(code, message, failed_rank, self._results, headline, next(iter(self._received), None))
