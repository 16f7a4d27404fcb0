"""Which ranks are queried, and which ranks inspect others, when operations wait."""

import json
import threading

from horovod import _core
from horovod.common.job import Job
from horovod.common.telemetry import hang
from horovod.common.telemetry.facts import Facts, Rank, Waiting
from horovod.common.telemetry.hang import Hangs

STOPPED = {
    "pid": 1, "at": 10**9, "tracer": 0, "resident_kib": 1, "swapped_kib": 0, "faults": 0, "blocked": 0,
    "threads": [{"id": 1, "name": "x", "state": "T", "cpu": 0, "wait": "", "call": -1, "file": ""}],
}  # fmt: skip
WAITING = {"name": "x", "set": 0, "age": 9.0, "ready": [0, 1, 2], "missing": [3]}


class Bus:
    """A message bus on which ranks 0 to 2 answer and rank 3 does not."""

    def __init__(self):
        self.handlers, self.topics, self.waiting, self.said = {}, {}, [], []

    def on(self, kind, handler):
        self.handlers[kind] = handler

    def on_topic(self, topic, handler):
        self.topics[topic] = handler

    def on_waiting(self, handler):
        self.waiting.append(handler)

    def ask_who_waits(self):
        self.later(self.waiting[0], {"asked": True, "waiting": [WAITING]})

    def send(self, kind, to=-1, **what):
        self.said.append((kind, to, what))
        if kind == "look":
            told = {"number": what["number"], "rank": what["rank"], "states": [STOPPED, STOPPED]}
            self.later(self.handlers["seen"], to, told)
        return True

    def asked(self, question):
        number, full, _ = question.split(";")
        for rank in map(int, full.split(",")):
            if rank != 3:
                answer = {"number": int(number), "rank": rank, "forced": False, "stacks": "", "python": None}
                body = json.dumps({**answer, "before": None, "state": None, "recent": []}).encode()
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
        self.bus.asked(body.decode())

    def write_report(self, name, text):
        return f"/reports/{name}"

    def set_report(self, where):
        self.where = where


class Witness:
    class answerer:
        @staticmethod
        def noticed():
            pass


def job(rank):
    """Return a job of four ranks on two hosts, as seen by one of the first host's ranks."""
    return Job(rank, 4, rank, 2, 0, 2, True, False, hosts=("a", "a", "b", "b"), pids=(10, 11, 12, 13))


def test_a_neighbour_looks_at_a_rank_of_another_host_that_does_not_answer():
    bus, told = Bus(), []
    done = threading.Event()
    engine = Engine(bus)

    def say(text):
        told.append(text)
        done.set()

    hangs = Hangs(bus, engine, job(0), Witness, say)
    bus.waiting[0]({"asked": False, "waiting": [WAITING]})
    assert done.wait(20)
    assert [(kind, to, what.get("pid")) for kind, to, what in bus.said] == [("explaining", -1, None), ("look", 2, 13)]
    assert told[0].startswith("why the job waits: rank 3 does not go on: its process is stopped (SIGSTOP or Ctrl-Z)")
    assert engine.where == "/reports/hang.txt"
    text = hangs.asked()
    assert "== rank 3 (host b, pid 13), which is waited for" in text
    assert text.endswith("This report: /reports/hang.txt\n")


def test_a_rank_that_looks_at_another_still_answers_for_itself(monkeypatch):
    bus, over, said = Bus(), threading.Event(), threading.Event()
    hangs = Hangs(bus, Engine(bus), job(1), Witness, lambda text: None)
    monkeypatch.setattr(hang, "look_at", lambda pid: [{"pid": pid, "over": over.wait(20)}])
    monkeypatch.setattr(bus, "send", lambda kind, **what: (bus.said.append((kind, what)), said.set()))
    bus.handlers["look"](0, {"number": 4, "rank": 0, "pid": 10})
    assert not bus.said  # its thread, which also collects Python's stacks, is free again
    over.set()
    assert said.wait(20)
    assert bus.said == [("seen", {"number": 4, "rank": 0, "states": [{"pid": 10, "over": True}]})]
    assert hangs


def test_a_guess_that_tells_less_about_the_same_wait_does_not_replace_a_better_one():
    bus = Bus()
    hangs = Hangs(bus, Engine(bus), job(0), Witness, lambda text: None)

    def facts(age, at, answers=False):
        ranks = {}
        if answers:
            ranks[3] = Rank(3, "b", 13)
            stack = 'Thread 0x1 (most recent call first):\n  File "/me/train.py", line 8 in load\n'
            told = {"forced": False, "stacks": stack, "python": {"main": 1}}
            ranks[3].answer({**told, "before": None, "state": STOPPED | {"threads": []}, "recent": []})
        waiting = [Waiting("x", 0, age, (0, 1, 2), (3,))]
        return Facts(waiting, waiting, ranks, 4, at=at)

    known = "rank 3 is at train.py:8 in load"
    unknown = "rank 3 did not submit what the others wait for"
    assert hangs._why(facts(5.0, 100.0)) == unknown
    assert hangs._why(facts(10.0, 105.0, answers=True)) == known
    assert hangs._why(facts(15.5, 110.0)) == known, "it does not answer this time"
    assert hangs._why(facts(5.0, 160.0)) == unknown, "another wait of the same name"
