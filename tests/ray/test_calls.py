"""Shortened error messages of Ray, and messages from workers. Without a cluster."""

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayActorError

from horovod.common.exceptions import HorovodInternalError, NoPlaceError
from horovod.ray import calls
from horovod.ray.calls import CallResult

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
    message = "\n".join(
        [
            "The actor died unexpectedly before finishing this task.",
            "\tclass_name: BaseHorovodWorker",
            "\tpid: 7",
            "The actor is dead because its worker process has died. Some common causes include: (1) many",
        ]
    )
    done = CallResult("", 1, error=RayActorError(error_msg=message))
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
