"""Agents of an elastic job's hosts, over connections that a test controls."""

import time

from horovod.runner.agent import messages
from horovod.runner.agent.messages import MAGIC, FrameReader, Hello, Report, Request, StartWorker, Stop, Worker, frame
from horovod.runner.job.host_agents import HostAgents
from horovod.runner.remote import ssh
from horovod.runner.remote.fleet import Fleet


class Connection:
    """A connection to an agent. `sent`: the launcher's messages."""

    status = None
    stderr_tail = ""
    pending = 0

    def __init__(self):
        self.ended = False
        self.sent: list[Request] = []
        self._reader = FrameReader(Request)
        self._data = b""
        self._ends = False

    def hello(self):
        self._data += MAGIC + frame(Hello(messages.gather()))

    def report(self, *reports: Report):
        self._data += b"".join(map(frame, reports))

    def breaks(self):
        self._ends = True

    # Behaviour of an agent's connection

    def may_have(self, ready):
        return True

    def read(self):
        data, self._data = self._data, b""
        self.ended = self.ended or (self._ends and not data)
        return data

    def write(self, data):
        self.sent += self._reader.feed(data)

    def flush(self):
        pass

    def hang_up(self):
        pass

    def cut_off(self):
        self.ended = True

    def kill(self):
        self.ended = True

    def end(self, deadline):
        return 255


class Hosts:
    """The `agents` under test; `made`: connections in order of creation. All hosts are remote."""

    def __init__(self, monkeypatch, fanout=32):
        self.connections: list[Connection] = []
        monkeypatch.setattr(ssh, "ask_rules", lambda hosts: None)
        fleet = Fleet([], ssh.Remote(), fanout=fanout, silence=1000)
        fleet._reach = lambda agent: self
        self.fleet = fleet
        self.limit = 0
        self._questions: list[str] = []
        self.agents = HostAgents(fleet, self, self, {}, 30.0, self)
        self.reports: list[Report] = []

    def turn(self):
        """Run one turn of the launcher's loop; return the events of hosts."""
        self.agents.take_troubles(self.fleet.receive(set(), self._take))
        now = time.monotonic()
        self.agents.take_troubles(self.fleet.look(now, True))
        return self.agents.tick(now)

    def _take(self, agent, report):
        if not self.agents.take(agent, report):
            self.reports.append(report)

    def begin(self, number: int, host: str) -> Connection:
        """Start a worker on a host without an agent; return the new agent's connection."""
        self.agents.start(number, host)
        assert self.turn() == []
        return self.connections[-1]

    # Reaching a host

    def open(self, host):
        self.connections.append(Connection())
        return self.connections[-1]

    def explain(self, host, status, output, greeting):
        return ssh.Failure("connection refused", "start sshd there", again=True)

    # Which hosts are this machine

    def ask(self, host):
        self._questions.append(host)

    def replies(self):
        questions, self._questions = self._questions, []
        return dict.fromkeys(questions, False)

    # Messages to agents

    def prepare(self, agent, slots):
        return iter(())

    def worker(self, number, host):
        return StartWorker(Worker(number, []))


def started(connection: Connection) -> list[int]:
    return [message.worker.rank for message in connection.sent if isinstance(message, StartWorker)]


def stops(connection: Connection) -> int:
    return sum(isinstance(message, Stop) for message in connection.sent)
