"""Agents on the hosts of an elastic job, one for each host.

An agent starts with the first worker on its host, and stops when the host is removed. First, the launcher checks
whether the host is this machine. Then it connects to the agent. If a host is unreachable, too slow or lost, or if its
agent ends by itself, the host is reported as lost. The agent of a removed host without workers retires: it is told to
stop, and is forgotten when it has finished.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from horovod.common.contract.kernel import make_room
from horovod.runner.agent.messages import Finished, Hello, KillWorker, Notice, Report, Started, Stop
from horovod.runner.agent.relay import EACH_LASTING
from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.job.orders import ElasticOrders
from horovod.runner.job.policy import TERM_GRACE
from horovod.runner.job.store_relay import StoreRelay
from horovod.runner.remote.connections import Agent
from horovod.runner.remote.fleet import Fleet, Trouble
from horovod.runner.remote.routes import Locality

# Number of store connections that the launcher relays in addition to those that the workers on other hosts need,
# because unauthenticated peers could otherwise use up all connections.
STRANGERS = 64


@dataclass(frozen=True)
class HostLost:
    """Event that reports that a host is no longer usable.

    Attributes:
        host: Name of the host.
        why: Reason to show in messages.
        workers: Workers that are lost with the host. No other event reports them.
    """

    host: str
    why: str
    workers: tuple[int, ...] = ()


@dataclass(frozen=True)
class NeverStarted:
    """Event that reports that a worker was cancelled before it started, because its host had no agent yet."""

    worker: int


class HostAgents:
    """The agents of a job, keyed by host.

    Only `tick` returns events, because callers may be iterating over the agents.
    """

    def __init__(
        self,
        fleet: Fleet,
        relay: StoreRelay,
        orders: ElasticOrders,
        pythons: Mapping[str, str],
        start_timeout: float,
        locality: Locality,
        names: Names = FLAGS,
    ) -> None:
        """Create a collection without agents.

        Args:
            fleet: Agents and their connections.
            relay: Relay of connections to the store.
            orders: Object that creates the messages to the agents.
            pythons: Python interpreters by host, for hosts with their own setting.
            start_timeout: Seconds within which an agent must answer.
            locality: Object that looks up whether a host is this machine.
            names: Names of the settings in messages.
        """
        self._names = names
        self._fleet = fleet
        self._relay = relay
        self._orders = orders
        self._pythons = pythons
        self._start_timeout = start_timeout
        self._locality = locality
        self._slots: Mapping[str, int] = {}
        self._agents: dict[str, Agent] = {}
        # Maps each host to the workers that wait until its agent is connected.
        self._queued: dict[str, list[int]] = {}
        self._running: dict[int, str] = {}  # Host of each worker that has been started or will be started.
        self._retiring: set[str] = set()
        self._lookups: dict[str, float] = {}  # Time at which each pending lookup of a host's name was started, by host
        self._stopping = False
        self._troubles: list[Trouble] = []  # Reports about hosts that `tick` has not yet processed
        self._events: list[HostLost | NeverStarted] = []

    def set_slots(self, slots: Mapping[str, int]) -> None:
        """Set the hosts of the job and their slot counts."""
        self._slots = slots

    def start(self, number: int, host: str) -> None:
        """Start a worker once the agent on its host is connected."""
        self._running[number] = host
        agent = self._agents.get(host)
        if agent is not None and agent.facts is not None and host not in self._retiring:
            self._send_worker(agent, number)
            return
        queued = self._queued.setdefault(host, [])
        queued.append(number)
        if agent is None and len(queued) == 1:
            self._lookups[host] = time.monotonic()
            self._locality.ask(host)

    def kill(self, number: int) -> None:
        """Kill a worker with SIGKILL, or cancel its start if it has not been started yet."""
        host = self._running.get(number)
        if host is None:
            return
        if number in self._queued.get(host, []):
            self._queued[host].remove(number)
            del self._running[number]
            self._events.append(NeverStarted(number))
        elif (agent := self._agents.get(host)) is not None:
            agent.send(KillWorker(number))

    def ended(self, number: int) -> None:
        """Record that a worker's process has exited."""
        self._running.pop(number, None)

    @property
    def waiting(self) -> list[Agent]:
        """Agents that have not sent their Hello messages yet."""
        return [agent for agent in self._agents.values() if agent.facts is None]

    def _send_worker(self, agent: Agent, number: int) -> None:
        agent.numbers.add(number)
        if agent.remote:
            self._relay.limit = STRANGERS + EACH_LASTING * len(self._running)
            make_room(2 * self._relay.limit + 4 * len(self._agents) + 64, at_least=64)
        agent.send(self._orders.worker(number, agent.host))

    def _add(self, host: str, local: bool) -> None:
        agent = Agent(host, [], remote=not local, python=self._pythons.get(host, ""))
        self._agents[host] = agent
        self.take_troubles(self._fleet.add(agent))

    def take(self, agent: Agent, report: Report) -> bool:
        """Handle a report about the agent itself. Return False if the report is about a worker."""
        if isinstance(report, Hello) and agent.host in self._retiring:
            # Send Stop again, because the first message may have been lost when a connection failed.
            agent.send(Stop(TERM_GRACE))
        elif isinstance(report, Hello):
            for message in self._orders.prepare(agent, self._slots.get(agent.host, 1)):
                agent.send(message)
            for number in self._queued.pop(agent.host, []):
                self._send_worker(agent, number)
        elif isinstance(report, Notice):
            agent.notice = report.text
        elif isinstance(report, Finished):
            agent.finished = True
        else:
            return isinstance(report, Started)
        return True

    def take_troubles(self, troubles: list[Trouble]) -> None:
        """Store reports about unusable hosts. The next `tick` processes them."""
        self._troubles += troubles

    def _lose(self, agent: Agent, why: str) -> None:
        retired = agent.host in self._retiring
        if self._stopping:
            return
        self._forget(agent)
        if not retired or agent.host in self._queued:
            self._fail(agent.host, why)

    def _fail(self, host: str, why: str) -> None:
        self._queued.pop(host, None)
        workers = tuple(number for number, its in self._running.items() if its == host)
        for number in workers:
            del self._running[number]
        self._events.append(HostLost(host, why, workers))

    def _forget(self, agent: Agent) -> None:
        del self._agents[agent.host]
        self._retiring.discard(agent.host)
        self._fleet.drop(agent)

    def next_time(self) -> float | None:
        """Return the next time (monotonic, s) at which the caller must call `tick`, or None if nothing is scheduled."""
        if self._troubles or self._events:
            return 0.0
        since = [*(agent.since for agent in self.waiting), *self._lookups.values()]
        return min((at + self._start_timeout for at in since), default=None)

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, because the launcher was suspended for that long."""
        for agent in self.waiting:
            agent.since += seconds
        self._lookups = {host: since + seconds for host, since in self._lookups.items()}

    def tick(self, now: float) -> list[HostLost | NeverStarted]:
        """Stop the agents of removed hosts, and remove agents that have exited.

        Return the events since the last call.
        """
        troubles, self._troubles = self._troubles, []
        for trouble in troubles:
            if self._agents.get(trouble.agent.host) is trouble.agent:
                self._lose(trouble.agent, trouble.text)
        if not self._stopping:
            self._begin(now)
        for agent in list(self._agents.values()) if not self._stopping else ():
            if agent.finished:
                self._end(agent)
            elif agent.facts is None and now >= agent.since + self._start_timeout:
                self._lose(agent, self._late(agent))
            elif agent.host not in self._slots and agent.host not in self._running.values():
                self._retire(agent)
        events, self._events = self._events, []
        return events

    def _begin(self, now: float) -> None:
        """Connect to the hosts whose name lookups have finished. Report a host as lost if its lookup times out."""
        for host, local in self._locality.replies().items():
            if self._lookups.pop(host, None) is not None:
                self._add(host, local)
        for host in [host for host, since in self._lookups.items() if now >= since + self._start_timeout]:
            del self._lookups[host]
            self._fail(host, f"host {host}: its name could not be looked up within {self._start_timeout:g} s")

    def _late(self, agent: Agent) -> str:
        why = self._fleet.failure_of(agent)
        hint = f"\nits login shell, or Python there, may hang: try `ssh {agent.host} true`" if agent.remote else ""
        limit = f"within {self._start_timeout:g} s ({self._names.start_timeout})"
        return f"no agent answered {limit} from {agent.name}{f': {why}' if why else hint}"

    def _retire(self, agent: Agent) -> None:
        if agent.host not in self._retiring:
            self._retiring.add(agent.host)
            agent.send(Stop(TERM_GRACE))

    def _end(self, agent: Agent) -> None:
        """Remove an agent that has exited by itself or whose host was removed."""
        if agent.host not in self._retiring:
            why = f"its agent has ended: {agent.notice}" if agent.notice else "its agent has ended"
            self._lose(agent, f"{agent.name} is lost: {why}")
            return
        self._forget(agent)
        # The host was added again while its old agent was stopping. Start the workers that were requested there.
        if queued := self._queued.pop(agent.host, []):
            for number in queued:
                self.start(number, agent.host)

    def stop(self) -> None:
        """Record that the job is ending. From then on, `tick` returns no events."""
        self._stopping = True
        self._queued.clear()
        self._lookups.clear()
