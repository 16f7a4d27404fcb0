"""The agents of an elastic job's hosts."""

import time

from horovod.runner.agent.messages import Finished, Notice
from horovod.runner.job.host_agents import HostLost, NeverStarted
from tests.runner.job.hosts import Hosts, started, stops


def test_an_agent_cut_off_after_its_reason_is_lost(monkeypatch):
    hosts = Hosts(monkeypatch)
    hosts.agents.set_slots({"b": 1})
    connection = hosts.begin(7, "b")
    connection.hello()
    assert hosts.turn() == []
    assert started(connection) == [7]
    connection.report(Notice("it received SIGTERM"))
    assert hosts.turn() == []
    connection.breaks()
    events = [*hosts.turn(), *hosts.turn()]
    assert events == [HostLost("b", "host b is lost: its agent has ended: it received SIGTERM", (7,))]
    again = hosts.begin(8, "b")
    assert again is not connection
    again.hello()
    hosts.turn()
    assert started(again) == [8]


def test_a_host_removed_during_a_retry_comes_back(monkeypatch):
    hosts = Hosts(monkeypatch)
    hosts.agents.set_slots({"b": 1})
    hosts.begin(7, "b").breaks()
    assert hosts.turn() == []
    hosts.agents.kill(7)
    hosts.agents.set_slots({"a": 1})
    assert hosts.turn() == [NeverStarted(7)]
    deadline = time.monotonic() + 20
    while len(hosts.connections) < 2:
        assert time.monotonic() < deadline, "it is not tried again"
        time.sleep(0.02)
        hosts.turn()
    again = hosts.connections[-1]
    again.hello()
    hosts.agents.set_slots({"b": 1})
    hosts.agents.start(9, "b")
    assert hosts.turn() == []
    assert (stops(again), started(again)) == (1, []), "it was to end, and does"
    again.report(Finished())
    hosts.turn()
    hosts.turn()
    last = hosts.connections[-1]
    assert last is not again
    last.hello()
    hosts.turn()
    assert started(last) == [9]
