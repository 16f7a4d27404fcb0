"""Which ranks inject the faults of HOROVOD_CHAOS, and when."""

import threading
import time

import pytest

from horovod.chaos import Event, Kind, plan
from horovod.chaos.events import Member, Ranks
from horovod.common import faults as module
from horovod.common.faults import Faults, act
from horovod.common.frontends import Job
from horovod.common.training_loop.steps import Marks


def ranks(own: int, size: int) -> Ranks:
    return Ranks(own, tuple(Member("a", "1") for _ in range(size)))


def job(rank: int, size: int) -> Job:
    return Job(rank, size, rank, size, 0, 1, True, False)


@pytest.mark.parametrize(("event", "code"), [(Event(Kind.EXIT, rank=0), 1), (Event(Kind.EXIT, pick=0.1, code=3), 3)])
def test_exit_faults_are_failures(event, code, monkeypatch):
    """A successful exit would end the job. The program is notified of one at a step, but not of one after a time."""
    with pytest.raises(SystemExit) as exit:
        act(event, ranks(0, 1))
    assert exit.value.code == code
    codes: list[int] = []
    monkeypatch.setattr(module.os, "_exit", codes.append)
    thread = threading.Thread(target=act, args=(event, ranks(0, 1)))
    thread.start()
    thread.join(20)
    assert codes == [code]


def test_steps_are_those_of_the_job():
    done: list[str] = []
    faults = Faults(
        plan("kill rank=1 step=2; stop rank=1 step=5 for=1s; preempt rank=0 step=0"), lambda e, _: done.append(str(e))
    )
    faults.begin(ranks(1, 3), 0, time.time(), first=True)
    faults.step()
    assert not done
    faults.step()
    assert done == ["kill rank=1 step=2"]
    faults.begin(ranks(0, 2), 2, time.time(), first=False)  # in the next epoch it has another rank
    for _ in range(5):
        faults.step()
    assert len(done) == 1
    # A new worker learns how far the job is: no fault is repeated.
    new = Faults(faults._plan, lambda e, _: done.append(str(e)))
    new.begin(ranks(1, 3), 4, time.time() - 100, first=False)
    assert len(done) == 1
    new.step()
    assert done[1:] == ["stop rank=1 step=5 for=1s"]
    first = Faults(faults._plan, lambda e, _: done.append(str(e)))
    first.begin(ranks(0, 3), 0, time.time(), first=True)
    assert done[2:] == ["preempt rank=0 step=0"]


def test_newcomers_skip_faults_before_the_first_step(monkeypatch):
    """It joins before the others have taken a step."""
    done: list[str] = []
    for began, happened in ((None, ["kill rank=1 step=0"]), (time.time() - 1, [])):
        done.clear()
        faults = Faults(plan("kill rank=1 step=0"), lambda e, _: done.append(str(e)))
        monkeypatch.setattr(module, "_faults", faults)
        other = 0, began or time.time(), "1", (), began is None
        monkeypatch.setattr(module, "allgather_object", lambda own, name, other=other: [other, own])
        module.begin(job(1, 2))
        assert done == happened


def test_the_source_of_the_state_counts_repeated_steps(capfd):
    faults = Faults(plan("kill rank=1 step=200"), lambda *_: None)
    faults.begin(ranks(1, 3), 0, time.time(), first=True)
    faults.again(1, None)
    assert capfd.readouterr().err == "", "no rank has seen a step"
    for step in range(1, 13):
        faults.step()
        if step == 5:
            faults.committed()
    faults.begin(ranks(0, 2), 13, time.time(), first=False)  # another rank had taken one more
    for source, steps, expected in ((1, 7, ""), (0, 1, "1"), (0, None, "8"), (0, None, "0")):
        faults.again(source, steps)
        assert capfd.readouterr().err == (expected and f"chaos: steps that are done again: {expected}\n")
    new = Faults(plan("kill rank=1 step=200"), lambda *_: None)
    new.begin(ranks(0, 2), 100, time.time(), first=False)
    new.again(0, None)
    assert capfd.readouterr().err == "chaos: steps that are done again: 0\n", "it begins with what the others have"


def test_marks_call_their_observer():
    marks, received = Marks(), []
    marks.beside = lambda: received.append("beside")
    marks.open(lambda waits: received.append("step"), lambda: None)
    marks.tell()
    assert received == ["step", "beside"]
    marks.beside = None
    marks.open(lambda waits: received.append("step"), lambda: None)
    marks.tell()
    assert received[2:] == ["step"]
