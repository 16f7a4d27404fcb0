"""Workers that do not all become ranks, and shutdowns that are interrupted."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayActorError

from horovod.ray import RayExecutor, worker_group
from horovod.ray.calls import LogMessage
from horovod.ray.worker_group import WorkerGroup
from tests.ray import functions
from tests.ray.refused_assignment import one_that_nobody_gets
from tests.runner.launching import eventually


def idle():
    """A worker group without a cluster."""
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=5), num_workers=2)
    return WorkerGroup(executor._settings, executor._plan, None, 1, 0)


class Actor:
    """An actor that runs its calls sequentially in a thread until it is killed."""

    def __init__(self, number=0):
        self.number = number
        self._thread = ThreadPoolExecutor(1)
        self._called = []
        self.killed = False

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *args: self._call(method, args))

    def _call(self, method, args):
        future = self._thread.submit(args[0], self) if method == "execute" else Future()
        self._called.append(future)
        if method == "set_queue":
            future.set_result(None)
        return SimpleNamespace(future=lambda: future)

    def kill(self):
        self.killed = True
        for one in self._called:
            if not one.done():
                one.set_exception(RayActorError())
        self._thread.shutdown(wait=False)


class Heard:
    """Replaces a CallbackListener, without a cluster."""

    queue = None

    def __init__(self, callbacks, box):
        self._callbacks = callbacks or ()

    def tell(self, event):
        for one in self._callbacks:
            one(event.value)

    def finish(self, pass_on):
        pass

    def close(self):
        pass


@pytest.fixture
def staffed(monkeypatch):
    """A worker group of two actors without a cluster."""
    monkeypatch.setattr(worker_group, "CallbackListener", Heard)
    made = idle()
    made.workers, made.hosts = [Actor(0), Actor(1)], ["a", "b"]
    yield made
    for one in made.workers:
        one.kill()


def within(seconds, call, *args, **kwargs):
    """Run the call in a thread, so that the test ends even if the call hangs."""
    future = Future()

    def run():
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


def slow(actor):
    time.sleep(0.5)
    return actor.number


def number(actor):
    return actor.number


@pytest.mark.parametrize("nested", [WorkerGroup.call, WorkerGroup.call_first])
def test_a_callback_that_waits_for_its_own_workers(staffed, nested):
    def logs(actor):
        if actor.number == 0:
            staffed._box.put(LogMessage({}))
        return slow(actor)

    with pytest.raises(RuntimeError, match="a callback has called the executor that waits for it"):
        within(20, staffed.call, "execute", logs, callbacks=[lambda _: nested(staffed, "execute", number)])
    assert within(20, staffed.call, "execute", number) == [0, 1]


def test_a_callback_that_sends(staffed):
    """Results for the outer call are not lost."""
    sent = []

    def logs(actor):
        if actor.number == 0:
            staffed._box.put(LogMessage({}))
        return slow(actor)

    def send(_):
        time.sleep(1)  # results arrive meanwhile
        sent.extend(staffed.send("execute", number))

    assert within(20, staffed.call, "execute", logs, callbacks=[send]) == [0, 1]
    assert [one.future().result(10) for one in sent] == [0, 1]


@pytest.mark.parametrize("during", ["room", "actors", "answers", "assignments"])
def test_a_shutdown_while_another_thread_starts(monkeypatch, during):
    """It leaves no actor and no placement group, and the start does not look successful."""
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=2)
    actors, given_back, ended = [], [], []
    threads = ThreadPoolExecutor(1)

    def now(step):
        if step == during:
            started = executor._workers
            ended.append(threads.submit(executor.shutdown))
            eventually(lambda: started._over, 10, "the shutdown has begun")

    def room(*_):
        now("room")
        return SimpleNamespace(give_back=lambda: given_back.append(True))

    def actor(self, place, size):
        actors.append(Actor(place))
        now("actors" if place == 1 else "")
        return actors[-1]

    def describe(self, refs, answers, trouble, longer=0.0):
        if during == "answers":
            now("answers")
            return ask(self, refs, answers, trouble, longer)
        return [(None, "", [])] * len(refs)

    ask = WorkerGroup._ask
    monkeypatch.setattr(worker_group.strategy, "find_room", room)
    monkeypatch.setattr(WorkerGroup, "_actor", actor)
    monkeypatch.setattr(WorkerGroup, "_ask", describe)
    monkeypatch.setattr(WorkerGroup, "_assign", lambda *_: now("assignments"))
    monkeypatch.setattr("horovod.ray.executor.strategy.current_group", lambda use: None)
    monkeypatch.setattr(worker_group.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(worker_group.ray, "kill", lambda worker, no_restart: worker.kill())
    with threads, pytest.raises(RuntimeError, match=r"shutdown\(\) was called during start\(\)"):
        within(40, executor.start)
    assert ended[0].result(0) is None
    assert len(actors) == (0 if during == "room" else 2)
    assert all(one.killed for one in actors)
    assert given_back
    assert executor._workers is None


@pytest.mark.heavy
def test_a_worker_without_a_seat_does_not_hold_up_the_end(local, monkeypatch):
    """The worker may take as long to join as a worker needs to start; the shutdown does not wait longer."""
    one_that_nobody_gets(monkeypatch, 1)
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=20), num_workers=2)
    ended = []
    shutdown = WorkerGroup.shutdown

    def timed(self):
        begun = time.monotonic()
        shutdown(self)
        ended.append(time.monotonic() - begun)

    monkeypatch.setattr(WorkerGroup, "shutdown", timed)
    with pytest.raises(RuntimeError, match=r"worker 1 did not join the job: AssignmentError: .*which does not answer"):
        executor.start()
    assert ended[0] < worker_group._END
    with pytest.raises(RuntimeError, match="call start"):
        executor.run(functions.ranks)
