"""Which ranks are queried, and which ranks inspect others, when operations wait."""

import json
import threading

from horovod import _core
from horovod.common.frontends import Job
from horovod.common.telemetry.hang import Hangs

STOPPED = {
    "pid": 1, "at": 10**9, "tracer": 0, "resident_kib": 1, "swapped_kib": 0, "faults": 0, "blocked": 0,
    "threads": [{"id": 1, "name": "x", "state": "T", "cpu": 0, "wait": "", "call": -1, "file": ""}],
}  # fmt: skip
WAITING = {"name": "x", "set": 0, "age": 9.0, "ready": [0, 1, 2], "missing": [3]}


class Bus:
    """A message bus on which ranks 0 to 2 answer and rank 3 does not."""

    def __init__(self):
        self.handlers, self.topics, self.waiting, self.sent = {}, {}, [], []

    def on(self, kind, handler):
        self.handlers[kind] = handler

    def on_topic(self, topic, handler):
        self.topics[topic] = handler

    def on_waiting(self, handler):
        self.waiting.append(handler)

    def ask_who_waits(self):
        self.later(self.waiting[0], {"asked": True, "waiting": [WAITING]})

    def send(self, kind, to=-1, **what):
        self.sent.append((kind, to, what))
        if kind == "look":
            reply = {"number": what["number"], "rank": what["rank"], "states": [STOPPED, STOPPED]}
            self.later(self.handlers["seen"], to, reply)
        return True

    def receive(self, question):
        number, full, _ = question.split(";")
        for rank in map(int, full.split(",")):
            if rank != 3:
                reply = {"number": int(number), "rank": rank, "forced": False, "stacks": "", "python": None}
                body = json.dumps({**reply, "before": None, "state": None, "recent": []}).encode()
                self.later(self.topics[_core.TOPIC_ANSWER], rank, body)

    @staticmethod
    def later(handler, *arguments):
        threading.Timer(0.01, handler, arguments).start()


class Engine:
    report_dir = "/reports"

    def __init__(self, bus):
        self.bus, self.where = bus, "unknown"

    def leave_note(self, to, topic, body):
        assert (to, topic) == (-1, _core.TOPIC_EXPLAIN)
        self.bus.receive(body.decode())

    def write_report(self, name, text):
        return f"/reports/{name}"

    def set_report(self, where):
        self.where = where


class FakeStackReporter:
    class answerer:
        @staticmethod
        def noticed():
            pass


def job(rank):
    """Return a job of four ranks on two hosts, as seen by one of the first host's ranks."""
    return Job(rank, 4, rank, 2, 0, 2, True, False, hosts=("a", "a", "b", "b"), pids=(10, 11, 12, 13))


def test_a_neighbour_examines_an_unresponsive_rank_of_another_host():
    bus, lines = Bus(), []
    done = threading.Event()
    engine = Engine(bus)

    def log_line(text):
        lines.append(text)
        done.set()

    hangs = Hangs(bus, engine, job(0), FakeStackReporter, log_line)
    bus.waiting[0]({"asked": False, "waiting": [WAITING]})
    assert done.wait(20)
    assert [(kind, to, what.get("pid")) for kind, to, what in bus.sent] == [("explaining", -1, None), ("look", 2, 13)]
    assert lines[0].startswith("why the job waits: rank 3 does not go on: its process is stopped (SIGSTOP or Ctrl-Z)")
    assert engine.where == "/reports/hang.txt"
    text = hangs.explain()
    assert "== rank 3 (host b, pid 13), which is waited for" in text
    assert text.endswith("This report: /reports/hang.txt\n")
