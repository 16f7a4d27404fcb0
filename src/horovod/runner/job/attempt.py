"""One attempt at running a fixed-size job with agents, from connecting to the hosts until all processes have exited.

Each attempt has its own agents, its own key, and its own store, in which its ranks find each other. `policy` decides
when the attempt ends or must be stopped. The event loop in `watch` calls this module.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping

from horovod.common.contract.worker_env import make_key
from horovod.runner.agent.messages import (
    Exited,
    Finished,
    Notice,
    Output,
    PassOn,
    Report,
    Result,
    Started,
    StdinData,
    StdinReady,
    Stop,
    StreamData,
    StreamEnd,
    StreamOpen,
    WorkerReport,
)
from horovod.runner.attribution import first_failure
from horovod.runner.attribution.endings import Endings
from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.base.job_result import describe_status
from horovod.runner.job.orders import Orders
from horovod.runner.job.policy import AGENT_GRACE, Phase
from horovod.runner.job.progress import Host, Progress, State, UninitializedJobCheck, late, users_command
from horovod.runner.job.store_relay import StoreRelay, open_store
from horovod.runner.job.terminal import StdinSource
from horovod.runner.job.watch import Watch
from horovod.runner.output.rank_files import RankFileError
from horovod.runner.plan.settings import LaunchSettings
from horovod.runner.remote.connections import Agent
from horovod.runner.remote.fleet import Fleet, Trouble


class AgentAttempt:
    """Base class for one attempt at running a job, either elastic or of fixed size.

    Attributes:
        endings: Reports about how the ranks exited.
        lost: Messages about hosts that were lost.
    """

    def __init__(self, settings: LaunchSettings, watch: Watch, fleet: Fleet, hosts: Mapping[int, str]) -> None:
        self._settings = settings
        self._watch = watch
        self._screen = watch.screen
        self._fleet = fleet
        self.endings = Endings(hosts)
        self.lost: list[str] = []

    def _stop_agents(self, grace: float, first: int) -> None:
        self._fleet.abandon_waiting()
        for agent in self._fleet.agents:
            agent.send(Stop(grace, first))

    def suspend(self) -> None:
        """Suspend only the launcher after Ctrl-Z. First tell the agents that the launcher will be silent."""
        self._screen.queue.leave()
        self._fleet.watch(active=False)
        since = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._postpone(time.monotonic() - since)
        self._fleet.watch(active=True)

    def _postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, because the launcher was suspended for that long."""

    def pass_on(self, number: int) -> None:
        """Send a warning signal to all agents, which forward it to the processes that handle it."""
        for agent in self._fleet.agents:
            agent.send(PassOn(number))

    def _show(self, report: Output) -> None:
        try:
            self._screen.show(report)
        # An output file cannot be written, for example because the disk is full. Stop the job.
        except RankFileError as error:
            self._watch.fail(str(error))

    def _log(self, text: str) -> None:
        if self._settings.verbose:
            self._screen.log(text)


class Attempt(AgentAttempt):
    """One attempt at running a fixed-size job.

    Attributes:
        results: Contents of the ranks' result files, keyed by rank.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        environ: Mapping[str, str],
        watch: Watch,
        fleet: Fleet,
        connections: int,
        *,
        stdin: StdinSource | None = None,
        payload: bytes | None = None,
        results: bool = False,
    ) -> None:
        """Open the job's store, but do not start any process yet.

        Args:
            settings: Job settings.
            environ: The launcher's environment variables.
            watch: Event loop that runs this attempt.
            fleet: Agents of the job's hosts.
            connections: Maximum number of simultaneous connections to the store that agents can relay.
            stdin: Standard input of the launcher, which rank 0 reads.
            payload: Contents of a file that all workers inherit.
            results: True to collect the workers' result files.

        Raises:
            OSError: If the store cannot be opened.
        """
        hosts = {slot.rank: slot.hostname for slot in settings.slots}
        super().__init__(settings, watch, fleet, hosts)
        self._environ = environ
        self._sink = watch.screen.sink
        self._policy = watch.policy
        self._stdin = stdin
        self._payload = payload
        self._want_results = results
        self._size = len(settings.slots)
        self._started: set[str] = set()  # Hosts on which all processes of the job have started
        self.results: dict[int, bytearray] = {}
        self._uninitialized = UninitializedJobCheck(self._size, users_command(settings, payload))
        self._progress = Progress(hosts, self._screen.queue.rewrites)
        self._key = make_key()
        self._store = open_store(self._key)
        self._relay = StoreRelay(self._store.address, connections)

    def start(self) -> None:
        """Start connecting to the agents on all hosts of the job."""
        self._take_troubles(self._fleet.start())

    def launch(self) -> None:
        """Tell all agents to start their workers. Call this method once all hosts are connected."""
        agents = self._fleet.agents
        orders = Orders(self._settings, self._environ, agents, self._key, self._store.address, self._payload)
        # With --debug-rank, one rank uses the terminal. The launcher must not read from it or draw on it anymore.
        if orders.gives_terminal:
            self._stdin = None
            self._screen.queue.lend()
        for remark in orders.remarks():
            self._screen.log(remark)
        for agent in agents:
            for message in orders.messages(agent, stdin=self._stdin is not None, results=self._want_results):
                agent.send(message)
            self._log(f"the agent on host {agent.host} starts {agent.ranks}")
        self._log(f"command: {' '.join(self._settings.whole_command)}")
        host, port = self._store.address
        names = " ".join(sorted(orders.shared_environment(remote=False)))
        self._log(f"store on {host}:{port}; variables for the workers: {names}")

    def stop(self, grace: float, first: int = 0) -> None:
        """Stop all workers. `policy.Stop` describes the arguments, and how a repeated call changes the grace period."""
        if not self.endings.stopping:
            self.endings.stop(self._screen.tails())
        self._stop_agents(grace, first)

    @property
    def ended(self) -> bool:
        return all(agent.closed or agent.finished for agent in self._fleet.agents)

    def close(self) -> None:
        """Stop the remaining agents. Afterwards, no process of the attempt is left."""
        try:
            codes = self._fleet.end(AGENT_GRACE)
            for agent in self._fleet.agents:
                if not agent.finished and not agent.notice and not agent.lost:
                    code = codes.get(agent.host)
                    how = "did not end in time" if code is None else f"ended: {describe_status(code)}"
                    self._watch.troubles.append(f"the agent on host {agent.host} ({agent.ranks}) {how}")
        finally:
            self._relay.close()
            self._store.close()

    @property
    def ends(self) -> list[RankEnd]:
        """Records of how the ranks exited, as input for `first_failure`."""
        return self.endings.ends

    def events(self, listening: bool) -> dict[int, int]:
        wanted = {**self._fleet.events(listening), **self._relay.events()}
        stdin = self._stdin.waiting_for() if self._stdin is not None else None
        if stdin is not None:
            wanted[stdin] = wanted.get(stdin, 0) | select.POLLIN
        return wanted

    def serve(self, ready: set[int], listening: bool) -> None:
        if listening:
            self._take_troubles(self._fleet.receive(ready, self._take))
        self._fleet.flush()
        self._relay.serve(ready)
        if self._stdin is not None and self._stdin.waiting_for() in ready:
            self._send_stdin(self._stdin.read())

    def next_time(self) -> float | None:
        clocks = (
            self._fleet.next_time(),
            self._progress.next_time(),
            self._uninitialized.next_time(),
            time.monotonic() + 1.0 if self._forming() else None,
        )
        times = [at for at in clocks if at is not None]
        if self._stdin is not None and self._stdin.in_background:
            # No event tells when the launcher gets into the foreground and can read stdin, so check every second.
            times.append(time.monotonic() + 1.0)
        return min(times, default=None)

    def tick(self, now: float, listening: bool) -> None:
        self._take_troubles(self._fleet.look(now, listening))
        self._sink.phase(self._policy.phase.name)
        if self._fleet.connected:
            self._watch.connected()
        if remark := self._uninitialized.early(now, self._called()):
            self._screen.log(remark)
        shown = self._progress.update(now, self._state())
        self._screen.queue.status(shown.status)
        if shown.line:
            self._screen.log(shown.line)

    def doubtful(self, now: float) -> bool:
        return bool(self._fleet.suspects(now)) and not first_failure.has_culprit(self.endings.ends)

    def _called(self) -> bool:
        """Return True if any rank has called hvd.init(), and thus sent a report or connected to the store."""
        return bool(self.endings.called or self._store.completed or self._store.waiting())

    def _forming(self) -> bool:
        """Return True while ranks are still waiting for each other in the store.

        No event signals the end of this wait.
        """
        launched = self._policy.phase in (Phase.STARTING, Phase.RUNNING, Phase.SETTLING)
        return self._size > 1 and launched and self._store.completed < 2

    def _state(self) -> State:
        if self._policy.phase in (Phase.STOPPING, Phase.ENDED):
            return State()
        if self._policy.phase is Phase.CONNECTING:
            return State(connecting=[self._waited(agent) for agent in self._fleet.waiting])
        late = [self._waited(agent) for agent in self._fleet.agents if agent.host not in self._started]
        return State(starting=late, groups=self._store.waiting() if self._forming() else {})

    def _waited(self, agent: Agent) -> Host:
        return Host(agent.host, [slot.rank for slot in agent.slots], self._fleet.failure_of(agent))

    def late(self) -> str:
        waiting = [
            (agent.host, agent.ranks, self._fleet.failure_of(agent), agent.remote) for agent in self._fleet.waiting
        ]
        return late(waiting, self._settings.start_timeout, self._settings.names)

    def remark(self) -> str:
        """Return a warning if the job succeeded but no rank called hvd.init(). Otherwise, return an empty string."""
        return self._uninitialized.late(self._called())

    # Events

    def _take_troubles(self, troubles: list[Trouble]) -> None:
        for trouble in troubles:
            if trouble.lost:
                self.lost.append(trouble.text)
                self._watch.fail()
            else:
                self._watch.fail(trouble.text)

    def _take(self, agent: Agent, report: Report) -> None:
        if isinstance(report, Output):
            self._show(report)
        elif isinstance(report, (StreamOpen, StreamData, StreamEnd)):
            self._take_stream(agent, report)
        elif isinstance(report, WorkerReport):
            self.endings.record(report.report)
            self._sink.worker_report(report.report)
        elif isinstance(report, Exited):
            self._end_rank(report)
        elif isinstance(report, Started):
            self._policy.started()
            self._started.add(agent.host)
            self._sink.started(report.pids)
            if len(self._started) == len(self._fleet.agents):
                self._uninitialized.started(time.monotonic())
            self._log(f"processes on host {agent.host}: {', '.join(f'rank {r} pid {p}' for r, p in report.pids)}")
        elif isinstance(report, StdinReady) and self._stdin is not None:
            if report.open:
                self._stdin.requested = True
            else:
                self._stdin.close()
        elif isinstance(report, Result):
            self.results.setdefault(report.rank, bytearray()).extend(report.data)
        elif isinstance(report, Notice):
            agent.notice = report.text
            self._watch.fail(f"the agent on host {agent.host} ({agent.ranks}) ends the job: {report.text}")
        elif isinstance(report, Finished):
            agent.finished = True
            if report.survivors:
                left = f"processes on host {agent.host} that SIGKILL did not end: {report.survivors}"
                self._watch.troubles.append(left)

    def _take_stream(self, agent: Agent, report: StreamOpen | StreamData | StreamEnd) -> None:
        known = self._relay.refused
        self._relay.take(agent, report)
        if self._relay.refused != known:
            self._screen.log(
                f"warning: more connections to the job's store than its ranks need come from host {agent.host}; "
                "one was refused"
            )

    def _end_rank(self, report: Exited) -> None:
        rank = report.rank
        self._screen.finish(rank)
        self.endings.end(report, self._screen.tail(rank))
        self._sink.exited(rank, report.status, report.error)
        self._log(f"rank {rank} ended: {report.error or describe_status(report.status)}")
        if report.status != 0:
            self._policy.failed(time.monotonic())

    def _send_stdin(self, data: bytes | None) -> None:
        if data is None:
            return
        if self._stdin is not None and self._stdin.terminal:
            self._screen.queue.typed(data)
        for agent in self._fleet.agents:
            if any(slot.rank == 0 for slot in agent.slots):
                agent.send(StdinData(data))
