"""Observers of a job: what rank 0 sends to the dashboard, and failures of observers."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from horovod.common.contract import live, reasons
from horovod.common.telemetry.telemetry import Live
from horovod.runner.agent.workers import ReportReader
from tests.runner.launching import eventually


@pytest.fixture
def pipe(monkeypatch):
    reader = ReportReader()
    monkeypatch.setenv(reasons.PIPE, reader.name)
    yield reader
    os.close(reader.fd)


class Bus:
    """A message bus with a receiver that always waits."""

    def __init__(self):
        self.handlers = []
        self.on_waiting = self.handlers.append

    def ask_who_waits(self):
        waiting = [
            {"name": "grad", "set": 0, "age": 3.0, "ready": [0], "missing": [1]},
            {"name": "new", "set": 0, "age": 0.01, "ready": [0], "missing": [1]},
        ]
        for handler in self.handlers:
            handler({"asked": True, "waiting": waiting})
            handler({"asked": False, "waiting": []})  # a stall warning


def account(size):
    ranks = [
        {"rank": rank, "made": 9, "steps": 0, "late": {"share": 0.0, "seconds": 0.0}, "reported": {"loss": float(rank)}}
        for rank in range(size)
    ]
    none = {"steps": 0, "last": None}
    return SimpleNamespace(job=lambda: {**none, "lately": none, "link_bandwidth": None, "sentence": "", "ranks": ranks})


def test_telemetry_reports_from_start_to_end(pipe, monkeypatch):
    monkeypatch.setattr("horovod.common.telemetry.telemetry.INTERVAL", 0.01)
    known = []
    received = []
    one = Live(Bus(), lambda: known[0] if known else None, lambda: "rank 1 sleeps")

    def read():
        received.extend(map(live.decode, pipe.read()))
        return received

    eventually(lambda: any(m.waits for m in read()), 20, "an operation waits, before there is any step")
    assert {type(message) for message in received} == {live.Waits}
    (wait,) = next(message.waits for message in received if message.waits)
    assert (wait.name, wait.missing) == ("grad", [1])
    assert received[-1].why == "rank 1 sleeps"
    known.append(account(3))
    eventually(lambda: any(isinstance(m, live.Rows) for m in read()), 20, "ranks are told of")
    read()
    del received[:]
    one.finish()
    kinds = {type(message): message for message in read()}
    assert kinds[live.Overall].made == 9
    assert [row.rank for row in kinds[live.Rows].rows] == [0, 1, 2]
    assert kinds[live.Values].values == [live.Value("loss", 1.0, 0.0, 2.0, 3)]
    assert kinds[live.Waits].total == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "hvd-live"]


# A job that cannot be observed continues, and a job whose observers fail still ends.

CANNOT_BEGIN = """
import numpy as np, horovod.numpy as hvd
from horovod.common.telemetry import stacks

def refuse(name):
    raise OSError(24, "Too many open files")

stacks._memory = refuse
hvd.init()
assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [1, 1]
for ask in (hvd.stats, hvd.dump, lambda: hvd.report(loss=1), lambda: hvd.start_timeline("x.json")):
    try:
        ask()
    except RuntimeError as error:
        assert "not observed" in str(error), error
    else:
        raise AssertionError(ask)
hvd.step()
hvd.stop_timeline()
hvd.shutdown()
hvd.init()
hvd.shutdown()
print("went on")
"""
CANNOT_END = """
import horovod.numpy as hvd
from horovod.common import observed
from horovod.common.frontends import state

hvd.init()

observed._telemetry._explain_listener.close = lambda: 1 / 0
hvd.shutdown()
assert state.engine is None
assert not hvd.is_initialized()
print("went on")
"""


@pytest.mark.parametrize(
    ("program", "text"), [(CANNOT_BEGIN, "OSError: [Errno 24] Too many open files"), (CANNOT_END, "ZeroDivisionError")]
)
def test_job_continues_after_errors(program, text):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "went on\n", done.stderr
    assert text in done.stderr
