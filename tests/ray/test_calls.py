"""Shortened error messages of Ray, and messages from workers. Without a cluster."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayActorError

from horovod.common.exceptions import HorovodInternalError, NoPlaceError
from horovod.ray import calls
from horovod.ray.calls import CallbackListener, CallResult, LogMessage
from horovod.runner.external_workers.mailbox import Mailbox

SHOWN = """\x1b[36mray::BaseHorovodWorker.execute()\x1b[39m (pid=7, ip=10.0.0.1)
           ^^^^^^^^^^^^
    ^^^^^^
  File "/lib/horovod/ray/executor.py", line 198, in <lambda>
    return lambda _: fn(*given_args)
                     ^^^^^^^^^^^^^^^
  File "/home/me/train.py", line 24, in train
    raise ValueError("no")
    ^^^^^^^^^^
ValueError: no"""


def test_a_traceback_without_what_is_rays_and_ours():
    assert calls.shortened(SHOWN).splitlines() == [
        "ray::BaseHorovodWorker.execute() (pid=7, ip=10.0.0.1)",
        '  File "/home/me/train.py", line 24, in train',
        '    raise ValueError("no")',
        "    ^^^^^^^^^^",
        "ValueError: no",
    ]


def test_how_an_actor_has_died_in_few_words():
    said = "\n".join(
        [
            "The actor died unexpectedly before finishing this task.",
            "\tclass_name: BaseHorovodWorker",
            "\tpid: 7",
            "The actor is dead because its worker process has died. Some common causes include: (1) many",
        ]
    )
    done = CallResult("", 1, error=RayActorError(error_msg=said))
    assert done.died
    assert done.words() == "its process has died: The actor is dead because its worker process has died."


@pytest.mark.parametrize(
    ("error", "victim"), [(HorovodInternalError("lost"), True), (NoPlaceError("gone"), True), (ValueError("no"), False)]
)
def test_who_has_failed_only_because_of_others(error, victim):
    assert CallResult("", 0, error=error).victim is victim


def test_an_error_names_who_where_and_what():
    error = CallResult("", 3, error=ValueError("no")).raised("rank 3 on host a", "a", 3)
    assert str(error) == "rank 3 on host a: ValueError: no"
    assert (error.rank, error.host, error.exit_code) == (3, "a", 1)


class Actor:
    """The actor of a queue that never delivers anything by itself. ``asked``: the methods called, in order."""

    def __init__(self):
        self.asked = []
        self.next = None
        self.get = SimpleNamespace(remote=self._get)
        self.put = SimpleNamespace(remote=lambda item: self.asked.append("put"))

    def _get(self):
        self.asked.append("get")
        self.next = Future()
        return SimpleNamespace(future=lambda: self.next)


@pytest.fixture
def ear(monkeypatch):
    """Return (a receiver, its queue's actor, the actor's arguments, the inbox, what callbacks received)."""
    actor, options, box, heard = Actor(), {}, Mailbox(), []

    def make(actor_options):
        options.update(actor_options)
        return SimpleNamespace(actor=actor)

    monkeypatch.setattr(calls, "Queue", make)
    monkeypatch.setattr(calls.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "ab" * 28))
    monkeypatch.setattr(calls.ray, "kill", lambda one: one.asked.append("kill"))
    return CallbackListener([heard.append], box), actor, options, box, heard


def test_the_queue_is_on_the_drivers_node(ear):
    where = ear[2]["scheduling_strategy"]
    assert (where.node_id, where.soft) == ("ab" * 28, False)
    assert ear[2]["num_cpus"] == 0


def test_an_ear_listens_until_it_is_closed(ear, caplog):
    made, actor, _, box, _ = ear
    actor.next.set_result({"step": 1})
    assert box.take(0.0)[0] == [LogMessage({"step": 1})]
    made.close()
    actor.next.set_result({"step": 2})  # in Ray's thread; the queue has ended meanwhile
    assert "exception" not in caplog.text
    assert actor.asked == ["get", "get", "kill"]
    made.close()
    assert actor.asked == ["get", "get", "kill"]
