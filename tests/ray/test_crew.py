"""Workers that do not all become ranks, and shutdowns that are interrupted."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.exceptions import ActorHandleNotFoundError, RayActorError
from ray.util import placement_group_table

from horovod.ray import RayExecutor, crew
from horovod.ray.calls import Gone
from horovod.ray.crew import Crew
from horovod.runner.function.worker_error import WorkerError
from tests.ray import functions
from tests.ray.seats import one_that_nobody_gets
from tests.runner.launching import eventually

THREADS = ("horovod-lines", "horovod-store", "horovod-handover")


def ref(value=None, error=None):
    future = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
    return SimpleNamespace(future=lambda: future)


def idle():
    """A crew without any cluster."""
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=5), num_workers=2)
    return Crew(executor._settings, executor._plan, None, 1, 0)


def test_the_end_of_a_worker_while_others_take_their_seats_is_kept():
    made, answers = idle(), {}
    made._box.put(Gone(1))
    assert made._ask([ref("a"), ref("b")], answers, "did not take its seat") == ["a", "b"]
    assert answers == {0: "a", 1: "b"}
    assert made._dead == {1: "its process has ended"}


def test_what_comes_together_with_a_failure_is_kept():
    made, answers = idle(), {}
    with pytest.raises(RuntimeError, match="worker 0 did not take its seat: ValueError: no"):
        made._ask([ref(error=ValueError("no")), ref("b"), ref(error=RayActorError())], answers, "did not take its seat")
    assert answers == {1: "b"}
    assert list(made._dead) == [2]


@pytest.mark.heavy
def test_a_worker_without_a_seat_does_not_hold_up_the_end(local, monkeypatch):
    """It is waited for as long as a worker may need to start, on a busy machine too, and its end no longer."""
    one_that_nobody_gets(monkeypatch, 1)
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=20), num_workers=2)
    ended = []
    shutdown = Crew.shutdown

    def timed(self):
        begun = time.monotonic()
        shutdown(self)
        ended.append(time.monotonic() - begun)

    monkeypatch.setattr(Crew, "shutdown", timed)
    with pytest.raises(RuntimeError, match=r"worker 1 did not take its seat: SeatError: .*which does not answer"):
        executor.start()
    assert ended[0] < crew._END
    with pytest.raises(RuntimeError, match="call start"):
        executor.run(functions.ranks)


def test_a_shutdown_after_that_of_ray(monkeypatch):
    made, killed = idle(), []

    def kill(worker, no_restart):
        killed.append(worker)
        raise ActorHandleNotFoundError("of another session")

    monkeypatch.setattr(crew.ray, "kill", kill)
    for again in (False, True):  # ray.init() after ray.shutdown(), or not
        made.workers = ["a", "b"]
        monkeypatch.setattr(crew.ray, "is_initialized", lambda again=again: again)
        made.shutdown()
        assert made.workers == []
        assert killed == (["a", "b"] if again else [])


def test_threads_take_turns_and_one_ends_what_another_waits_for(local):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
    executor.start()
    try:
        with ThreadPoolExecutor(3) as threads:
            calls = [threads.submit(executor.run, functions.ranks, [float(n)]) for n in range(3)]
            assert [[one[4] for one in call.result(60)] for call in calls] == [[1.0 + n] * 2 for n in range(3)]
            call = threads.submit(executor.run, time.sleep, [100])
            time.sleep(0.5)
            begun = time.monotonic()
            executor.shutdown()
            with pytest.raises(WorkerError, match="its process has died"):
                call.result(30)
            assert time.monotonic() - begun < 30
    finally:
        executor.shutdown()


def test_a_callback_that_shuts_down(local):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=1)
    executor.start()
    with pytest.raises(RuntimeError, match=r"nothing after shutdown\(\)"):
        executor.run(functions.logs, [1, 60.0], callbacks=[lambda told: executor.shutdown()])


@pytest.mark.heavy  # starts Ray anew
def test_a_shutdown_that_is_interrupted_can_be_finished(local, monkeypatch):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
    executor.start()
    group = executor._crew._room.group

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as within:
        within.setattr(Crew, "_await_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executor.shutdown()
    executor.shutdown()
    eventually(lambda: placement_group_table(group)["state"] == "REMOVED", 30, "the group is removed")
    assert [one.name for one in threading.enumerate() if one.name in THREADS] == []
    executor.shutdown()
