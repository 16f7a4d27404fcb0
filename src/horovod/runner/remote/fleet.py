"""Collection of all agents of a job. The launcher starts them, connects to them and watches them.

`routes` decides through which host the launcher reaches another host, and opens the connection. `heartbeats` decides
when a host is considered lost.

An agent is connecting until its Hello message arrives, and then connected. It is finished once its Finished message
arrives. It is lost if it is unreachable or silent, or if its connection breaks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from horovod._version import __version__
from horovod.runner.agent.messages import Heartbeat, Hello, Report, StreamData, StreamEnd, Watch
from horovod.runner.base.job_result import AgentError, describe_status
from horovod.runner.remote import routes, ssh
from horovod.runner.remote.connections import Agent
from horovod.runner.remote.heartbeats import Heartbeats, silent
from horovod.runner.remote.routes import BySrun, BySsh, Reach, Routes, ThisMachine, Through

# Maximum number of lines of a failed agent's stderr that messages show
TRACEBACK_LINES = 12
# Maximum seconds that the launcher spends on telling the agents that it will be suspended
FLUSH_SECONDS = 1.0
LOST_GRACE = 0.5  # Seconds in which the ssh process of a lost host can exit before it is killed


@dataclass(frozen=True)
class Trouble:
    """Host that has become unusable, and why.

    Attributes:
        agent: Agent of the host.
        text: Reason to show in messages.
        lost: True if the host was already part of the job.
    """

    agent: Agent
    text: str
    lost: bool = False


class Fleet:
    """Collection of the job's agents, in the order of their hosts.

    Only `end` and `watch` can block for more than LOST_GRACE seconds per host.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        remote: ssh.Remote,
        *,
        fanout: int,
        silence: float,
        reach: Reach | None = None,
    ) -> None:
        """Store the agents without starting them.

        Args:
            agents: Agents of the job's hosts.
            remote: Options for reaching other hosts.
            fanout: Maximum number of hosts to which each host connects.
            silence: Seconds without a message after which another host is considered lost.
            reach: Method by which to connect to all hosts. By default, the fleet uses child processes, ssh or Slurm.
        """
        self.agents = list(agents)
        self._by_host = {agent.host: agent for agent in agents}
        self._remote = remote
        self._own_reach = reach
        self._silence = silence
        fanout = sys.maxsize if remote.slurm_job or reach is not None else fanout
        self._routes = Routes([agent.host for agent in agents if agent.remote], fanout)
        self._heartbeats = Heartbeats(silence, time.monotonic())
        self._retry: dict[str, float] = {}
        self._last_failure: dict[str, str] = {}

    def start(self) -> list[Trouble]:
        """Connect to each host that the launcher reaches directly.

        The agents on these hosts connect to the other hosts.
        """
        first = [agent for agent in self.agents if self._routes.parent(agent.host) is None]
        if not self.has_own_reach:
            ssh.ask_rules([agent.host for agent in first if agent.remote])
        for agent in self.agents:
            agent.since = agent.last_heard = time.monotonic()
        return [trouble for agent in first for trouble in self._connect(agent)]

    def add(self, agent: Agent) -> list[Trouble]:
        """Add a host to an elastic job, and connect to it.

        The host must not have an agent in the fleet. The launcher connects to the host directly, so that losing it does
        not cut off other hosts.
        """
        self.agents.append(agent)
        self._by_host[agent.host] = agent
        agent.since = agent.last_heard = time.monotonic()
        if agent.remote and not self.has_own_reach:
            ssh.ask_rules([agent.host])
        return self._connect(agent)

    def drop(self, agent: Agent) -> None:
        """Remove the agent of a host. The agent must have finished, or the launcher must have given up on the host."""
        if not agent.closed:
            self._give_up(agent)
        self._retry.pop(agent.host, None)
        agent.end(time.monotonic() + LOST_GRACE)
        self.agents.remove(agent)
        del self._by_host[agent.host]

    @property
    def has_own_reach(self) -> bool:
        """True if the launcher does not use ssh to reach other hosts."""
        return self._own_reach is not None or not self._remote.by_ssh

    @property
    def agents_connect(self) -> bool:
        """True if the agents connect to the launcher themselves, so that no host names need to be looked up."""
        return self._own_reach is not None

    @property
    def connected(self) -> bool:
        """True if all agents have sent their Hello messages."""
        return all(agent.facts is not None for agent in self.agents)

    @property
    def waiting(self) -> list[Agent]:
        """Agents that have not sent their Hello messages yet."""
        return [agent for agent in self.agents if agent.facts is None]

    def _reach(self, agent: Agent) -> Reach:
        if self._own_reach is not None:
            return self._own_reach
        parent = self._routes.parent(agent.host)
        if not agent.remote:
            return ThisMachine()
        if self._remote.slurm_job:
            return BySrun(self._remote)
        return BySsh(self._remote) if parent is None else Through(self._by_host[parent], self._remote)

    def _connect(self, agent: Agent) -> list[Trouble]:
        try:
            agent.attach(self._reach(agent).open(agent.place))
        except OSError as error:
            agent.closed = True
            return self._unusable(agent, ssh.missing_ssh(error, agent.host))
        return []

    def _greet(self, agent: Agent) -> list[Trouble]:
        assert agent.facts is not None
        if agent.facts.version != __version__:
            text = (
                f"{agent.name} has horovod {agent.facts.version}, the launcher {__version__}\n"
                "install the same version on all hosts, or name the right interpreter with --remote-python or "
                "`python=` in the host file"
            )
            return [Trouble(agent, text)]
        if agent.remote:
            agent.send(Watch(self._silence))
        troubles: list[Trouble] = []
        for child in self._children(agent):
            child.since = child.last_heard = time.monotonic()
            troubles += self._connect(child)
        return troubles

    def _children(self, agent: Agent) -> list[Agent]:
        return [self._by_host[host] for host in self._routes.children(agent.host)]

    def _unusable(self, agent: Agent, failure: ssh.Failure) -> list[Trouble]:
        """Give up on a host that has not joined the job yet."""
        agent.lost = True
        if not agent.remote:
            return [Trouble(agent, failure.what)]
        return [Trouble(agent, f"{agent.name}: {failure.what}\n{failure.advice}")]

    def _lose(self, agent: Agent, how: str) -> list[Trouble]:
        """Give up on a host that is part of the job."""
        agent.lost = True
        return [Trouble(agent, f"{agent.name} is lost: {how}", lost=True)]

    def _explain_end(self, agent: Agent) -> list[Trouble]:
        """Handle a connection that ended before its agent had finished: retry it, or give up on the host."""
        assert agent.connection is not None
        status = agent.end(time.monotonic() + LOST_GRACE)
        stderr = agent.connection.stderr_tail
        if agent.facts is not None and agent.lost:
            return []  # The user has already been told that this host is lost.
        if agent.facts is not None and agent.notice:
            # The agent has reported that it is stopping its workers. In a fixed-size job, this has already ended the
            # job. In an elastic job, only this host is lost.
            return [] if agent.slots else self._lose(agent, f"its agent has ended: {agent.notice}")
        if agent.facts is not None:
            broke = routes.how_it_broke if agent.remote and self._remote.slurm_job else _how_it_broke
            return self._lose(agent, broke(agent.remote, status, stderr.strip().splitlines()))
        failure = self._reach(agent).explain(agent.place, status, stderr, agent.greeting)
        at = self._routes.after_failure(agent.host, failure.again, agent.since, time.monotonic())
        if at is None:
            return self._unusable(agent, failure)
        agent.closed, agent.connection = False, None
        self._retry[agent.host] = at
        self._last_failure[agent.host] = failure.what
        return []

    def failure_of(self, agent: Agent) -> str:
        """Return why the last attempt to reach the host failed, or an empty string if none failed."""
        return self._last_failure.get(agent.host, "")

    def _give_up(self, agent: Agent) -> None:
        agent.lost = agent.closed = True
        if agent.connection is not None:
            agent.connection.kill()

    def _cut_off_children(self, agent: Agent) -> None:
        for child in self._children(agent):
            if child.connection is not None and not child.closed:
                child.connection.cut_off()

    def abandon_waiting(self) -> None:
        """Give up on all agents that have not sent their Hello messages yet."""
        self._retry.clear()
        for agent in self.agents:
            if agent.facts is None:
                self._give_up(agent)

    def events(self, listening: bool) -> dict[int, int]:
        """Return the file descriptors to poll, with their poll events.

        If `listening` is False, omit the descriptors that deliver reports.
        """
        wanted: dict[int, int] = {}
        for agent in self.agents:
            if agent.connection is not None and not agent.closed:
                for fd, event in agent.connection.events(listening).items():
                    wanted[fd] = wanted.get(fd, 0) | event
        return wanted

    def receive(self, ready: set[int], take: Callable[[Agent, Report], None]) -> list[Trouble]:
        """Receive reports from the agents, and call `take(agent, report)` for each.

        Reports about the connections to other agents are handled here instead.
        """
        troubles: list[Trouble] = []
        for agent in list(self.agents):  # Copy the list, because `take` can add an agent.
            if agent.connection is not None and not agent.closed and agent.connection.may_have(ready):
                troubles += self._receive_from(agent, take)
        return troubles

    def _receive_from(self, agent: Agent, take: Callable[[Agent, Report], None]) -> list[Trouble]:
        troubles: list[Trouble] = []
        try:
            reports = agent.receive()
        except AgentError as error:
            self._give_up(agent)
            self._cut_off_children(agent)
            return [Trouble(agent, f"the agent on host {agent.host} sent {error}", lost=agent.facts is not None)]
        for report in reports:
            if isinstance(report, Hello):
                troubles += self._greet(agent)
            if isinstance(report, (StreamData, StreamEnd)) and report.stream in agent.streams:
                agent.streams[report.stream].deliver(report)
            elif not isinstance(report, Heartbeat):
                take(agent, report)
        if agent.closed:
            self._cut_off_children(agent)
            if not agent.finished:
                troubles += self._explain_end(agent)
        return troubles

    def flush(self) -> None:
        """Write as much queued data as possible to the agents without blocking."""
        for agent in self.agents:
            if agent.connection is not None and not agent.closed:
                agent.connection.flush()

    def next_time(self) -> float | None:
        """Return the next time (monotonic, s) at which the caller must call `look`, or None if nothing is scheduled."""
        times = list(self._retry.values())
        if any(agent.remote and not agent.closed for agent in self.agents):
            times.append(self._heartbeats.next_heartbeat)
        return min(times, default=None)

    def look(self, now: float, listening: bool) -> list[Trouble]:
        """Retry connections, send heartbeats and detect silent hosts. If `listening` is False, ignore silence."""
        troubles: list[Trouble] = []
        for host in [host for host, at in self._retry.items() if at <= now]:
            del self._retry[host]
            troubles += self._connect(self._by_host[host])
        if self._heartbeats.was_deaf(now, listening):
            for agent in self.agents:
                agent.last_heard = now
        if self._heartbeats.is_due(now):
            for agent in self._watched():
                agent.send(Heartbeat())
        for host, seconds in self._heartbeats.lost(now, self._last_heard()).items():
            agent = self._by_host[host]
            troubles += self._lose(agent, silent(seconds))
            self._give_up(agent)
        return troubles

    def _watched(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.remote and agent.facts is not None and not agent.closed]

    def _last_heard(self) -> dict[str, float]:
        return {agent.host: agent.last_heard for agent in self._watched()}

    def suspects(self, now: float) -> list[Agent]:
        """Return the agents whose hosts have been silent for so long that they might be lost."""
        return [self._by_host[host] for host in self._heartbeats.suspects(now, self._last_heard())]

    def watch(self, active: bool) -> None:
        """Tell the agents to resume or to pause watching the launcher.

        If `active` is False, they pause, because the launcher will be suspended and silent.
        """
        for agent in self.agents:
            if agent.remote and agent.facts is not None:
                agent.send(Watch(self._silence if active else 0))
                agent.last_heard = time.monotonic()
        deadline = time.monotonic() + FLUSH_SECONDS
        while any(a.connection is not None and a.connection.pending for a in self.agents if not a.closed):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
            self.flush()

    def end(self, seconds: float) -> dict[str, int | None]:
        """Stop all agents within about `seconds`, and return a mapping from host to its agent's exit code.

        An agent that was started through another agent is stopped before that agent.
        """
        deadline = time.monotonic() + seconds
        order = sorted(self.agents, key=lambda agent: self._routes.depth(agent.host), reverse=True)
        for agent in order:
            if not agent.closed:
                agent.hang_up()
        return {agent.host: agent.end(deadline) for agent in order}


def _how_it_broke(remote: bool, status: int | None, stderr: Sequence[str]) -> str:
    if remote and status in (255, None):
        return f"the connection to its agent broke: {stderr[-1].strip() if stderr else 'no reason is known'}"
    return "\n".join([f"its agent ended: {describe_status(status or 0)}", *stderr[-TRACEBACK_LINES:]])
