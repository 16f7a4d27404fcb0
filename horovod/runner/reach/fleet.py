"""All agents of a job: started on this machine, by ssh, or by ssh from an agent that is there already; watched by
heartbeats.

With more than `fanout` other hosts, the first `fanout` are reached from here and each starts some of the others: a tree
like that of a heap. A host that its parent cannot reach (no key there, say) is tried from here.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from horovod._version import __version__
from horovod.runner.base.errors import AgentError
from horovod.runner.base.exit_status import describe_status
from horovod.runner.protocol.messages import Alive, Hello, Report, StreamData, StreamEnd, Watch
from horovod.runner.reach import ssh
from horovod.runner.reach.agents import Agent
from horovod.runner.reach.connections import ProcessConnection, StreamConnection

RETRY_SECONDS = 1.0
RETRY_UNTIL = 7.0  # s after the first attempt in which another may begin; so a host is named within 10 s
STUCK_SECONDS = 2.0  # a gap in our own loop that long says that we, not the agents, were silent
TRACEBACK_LINES = 12  # of an agent that failed
FLUSH_SECONDS = 1.0  # for the agents to take the news that we shall be silent
LOST_GRACE = 0.5  # s for the ssh of a lost host


@dataclass(frozen=True)
class Trouble:
    """A host that cannot be used, or no longer. `lost`: it was part of the job."""

    agent: Agent
    text: str
    lost: bool = False


class Fleet:
    """The agents, in the order of the hosts. No call but `end` waits."""

    def __init__(self, agents: Sequence[Agent], remote: ssh.Remote, *, fanout: int, silence: float) -> None:
        """`silence`: seconds without a word from another host after which it counts as lost."""
        self.agents = list(agents)
        self._remote = remote
        self._silence = silence
        self._parents = _parents([agent for agent in agents if agent.remote], fanout)
        self._direct: set[str] = set()  # hosts whose parent could not reach them
        self._retry: dict[str, float] = {}
        self._last_failure: dict[str, str] = {}
        self._next_stream = 2  # even numbers are ours, odd ones the agents'
        self._next_word = 0.0
        self._last_look = time.monotonic()

    def start(self) -> list[Trouble]:
        """Begin with every host that needs no other one."""
        troubles: list[Trouble] = []
        if not self._remote.agent:
            ssh.ask_rules([agent.host for agent in self.agents if agent.remote and self._parent(agent) is None])
        for agent in self.agents:
            agent.since = agent.heard = time.monotonic()
            if self._parent(agent) is None:
                troubles += self._connect(agent)
        return troubles

    @property
    def connected(self) -> bool:
        return all(agent.facts is not None for agent in self.agents)

    @property
    def waiting(self) -> list[Agent]:
        """Those that have not said hello."""
        return [agent for agent in self.agents if agent.facts is None]

    def _parent(self, agent: Agent) -> Agent | None:
        return None if agent.host in self._direct else self._parents.get(agent.host)

    def _children(self, agent: Agent) -> Iterator[Agent]:
        return (other for other in self.agents if self._parent(other) is agent)

    def _connect(self, agent: Agent) -> list[Trouble]:
        parent = self._parent(agent)
        try:
            if not agent.remote:
                agent.attach(ProcessConnection(ssh.agent_command(), remote=False))
            elif parent is None:
                command = ssh.ssh_command(agent.host, self._remote, agent.python)
                agent.attach(ProcessConnection(command, remote=True))
            else:
                command = ssh.ssh_command(agent.host, self._remote, agent.python, ask=False)
                stream = self._next_stream
                self._next_stream += 2
                agent.attach(StreamConnection(parent.send, stream, ssh.words(command)))
                assert isinstance(agent.connection, StreamConnection)
                parent.streams[stream] = agent.connection
        except OSError as error:
            agent.gone = agent.lost = True
            failure = ssh.missing_ssh(error, agent.host)
            return [Trouble(agent, f"host {agent.host} ({agent.ranks}): {failure.what}\n{failure.advice}")]
        return []

    # The loop's parts

    def events(self, listening: bool) -> dict[int, int]:
        """Descriptors and what to poll them for; `listening` False: leave reports where they are."""
        wanted: dict[int, int] = {}
        for agent in self.agents:
            connection = agent.connection
            if connection is None or agent.gone:
                continue
            for fd, event in connection.events().items():
                wanted[fd] = wanted.get(fd, 0) | event
            if listening and isinstance(connection, ProcessConnection):
                wanted[connection.output] = wanted.get(connection.output, 0) | select.POLLIN
        return wanted

    def receive(self, ready: set[int], take: Callable[[Agent, Report], None]) -> list[Trouble]:
        """Hand every report that has come to `take`; what concerns connections is dealt with here."""
        troubles: list[Trouble] = []
        for agent in self.agents:
            connection = agent.connection
            if connection is None or agent.gone:
                continue
            if isinstance(connection, StreamConnection) or connection.output in ready:  # type: ignore[attr-defined]
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
            elif not isinstance(report, Alive):
                take(agent, report)
        if agent.gone:
            self._cut_off_children(agent)
            if not agent.finished:
                troubles += self._explain_end(agent)
        return troubles

    def _cut_off_children(self, agent: Agent) -> None:
        for child in self._children(agent):
            if isinstance(child.connection, StreamConnection) and not child.gone:
                child.connection.ended = True

    def flush(self) -> None:
        """Write to the agents what they take now."""
        for agent in self.agents:
            if agent.connection is not None and not agent.gone:
                agent.connection.flush()

    def _greet(self, agent: Agent) -> list[Trouble]:
        assert agent.facts is not None
        if agent.facts.version != __version__:
            text = (
                f"host {agent.host} ({agent.ranks}) has horovod {agent.facts.version}, the launcher {__version__}\n"
                "install the same version on all hosts, or name the right interpreter with --remote-python or "
                "`python=` in the host file"
            )
            return [Trouble(agent, text)]
        if agent.remote:
            agent.send(Watch(self._silence))
        troubles: list[Trouble] = []
        for child in self._children(agent):
            child.since = child.heard = time.monotonic()
            troubles += self._connect(child)
        return troubles

    def _explain_end(self, agent: Agent) -> list[Trouble]:
        """The connection is over before the agent has finished."""
        assert agent.connection is not None
        status = agent.end(time.monotonic() + LOST_GRACE)
        if agent.facts is not None:
            return self._explain_loss(agent, status)
        if not agent.remote:
            agent.lost = True
            return [Trouble(agent, f"the agent on this machine did not start: exit code {status}")]
        said, greeting = agent.connection.said, agent.greeting
        failure = ssh.explain(status or 0, said, agent.host, self._remote, agent.python, greeting)
        now = time.monotonic()
        parent = self._parent(agent)
        if parent is not None and not (failure.again and now - agent.since >= RETRY_UNTIL):
            self._direct.add(agent.host)
            self._try_again(agent, now, failure)
            return []
        if failure.again and now - agent.since < RETRY_UNTIL:
            self._try_again(agent, now + RETRY_SECONDS, failure)
            return []
        agent.lost = True
        return [Trouble(agent, f"host {agent.host} ({agent.ranks}): {failure.what}\n{failure.advice}")]

    def _explain_loss(self, agent: Agent, status: int | None) -> list[Trouble]:
        """It was part of the job, and has neither finished nor said why it would not."""
        if agent.notice or agent.lost:
            return []
        agent.lost = True
        assert agent.connection is not None
        said = agent.connection.said.strip().splitlines()
        if agent.remote and status in (255, None):
            how = f"the connection to its agent broke: {said[-1].strip() if said else 'no reason is known'}"
        else:
            how = f"its agent ended: {describe_status(status or 0)}"
            how += "".join(f"\n{line}" for line in said[-TRACEBACK_LINES:])
        return [Trouble(agent, f"host {agent.host} ({agent.ranks}) is lost: {how}", lost=True)]

    def _try_again(self, agent: Agent, at: float, failure: ssh.Failure) -> None:
        agent.gone, agent.connection = False, None
        self._retry[agent.host] = at
        self._last_failure[agent.host] = failure.what

    def failure_of(self, agent: Agent) -> str:
        """Why the last attempt to reach it failed, empty: none has yet."""
        return self._last_failure.get(agent.host, "")

    # The clock

    def next_time(self) -> float | None:
        """When `look` has something to do (monotonic)."""
        times = list(self._retry.values())
        if any(agent.remote and not agent.gone for agent in self.agents):
            times.append(self._next_word)
        return min(times, default=None)

    def look(self, now: float, listening: bool) -> list[Trouble]:
        """Retries, heartbeats in both directions. `listening` False: silence is our own doing."""
        troubles: list[Trouble] = []
        for host in [host for host, at in self._retry.items() if at <= now]:
            del self._retry[host]
            agent = next(agent for agent in self.agents if agent.host == host)
            troubles += self._connect(agent)
        if now - self._last_look > max(STUCK_SECONDS, self._silence / 2) or not listening:
            for agent in self.agents:
                agent.heard = now
        self._last_look = now
        if now >= self._next_word and self._silence > 0:
            self._next_word = now + self._silence / 4
            for agent in self.agents:
                if agent.remote and agent.facts is not None and not agent.gone:
                    agent.send(Alive())
        for agent in self.agents:
            if self._silent(agent, now):
                troubles.append(
                    Trouble(
                        agent,
                        f"host {agent.host} ({agent.ranks}) is lost: nothing was heard from it for "
                        f"{now - agent.heard:.0f} s; its machine is down or hangs, or the network to it is broken",
                        lost=True,
                    )
                )
                self._give_up(agent)
        return troubles

    def _silent(self, agent: Agent, now: float) -> bool:
        watched = agent.remote and agent.facts is not None and not agent.gone
        return watched and 0 < self._silence <= now - agent.heard

    def suspects(self, now: float) -> list[Agent]:
        """Hosts that have been silent for so long that they may be lost."""
        return [
            agent
            for agent in self.agents
            if agent.remote and agent.facts is not None and not agent.gone and now - agent.heard > self._silence / 2 > 0
        ]

    def abandon_waiting(self) -> None:
        """Those that have not said hello get no orders any more."""
        self._retry.clear()
        for agent in self.agents:
            if agent.facts is None:
                self._give_up(agent)

    def watch(self, active: bool) -> None:
        """`active` False: we are about to be suspended, so the agents must bear silence."""
        for agent in self.agents:
            if agent.remote and agent.facts is not None:
                agent.send(Watch(self._silence if active else 0))
                agent.heard = time.monotonic()
        deadline = time.monotonic() + FLUSH_SECONDS
        while any(a.connection is not None and a.connection.pending for a in self.agents if not a.gone):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
            self.flush()

    def _give_up(self, agent: Agent) -> None:
        agent.lost = agent.gone = True
        if isinstance(agent.connection, (ProcessConnection, StreamConnection)):
            agent.connection.kill()

    # The end

    def end(self, seconds: float) -> dict[str, int | None]:
        """End every agent, children before parents, within about `seconds`. Returns their exit codes by host."""
        deadline = time.monotonic() + seconds
        order = sorted(self.agents, key=self._depth, reverse=True)
        for agent in order:
            if not agent.gone:
                agent.hang_up()
        waited = [agent for agent in order if isinstance(agent.connection, ProcessConnection)]
        return {agent.host: agent.end(deadline) for agent in waited}

    def _depth(self, agent: Agent) -> int:
        depth, parent = 0, self._parent(agent)
        while parent is not None:
            depth, parent = depth + 1, self._parent(parent)
        return depth


def _parents(agents: Sequence[Agent], fanout: int) -> Mapping[str, Agent]:
    """Who starts whom: agent i >= fanout is started by agent i // fanout - 1, so each has at most `fanout`."""
    return {agents[i].host: agents[i // fanout - 1] for i in range(fanout, len(agents))}
