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


def test_tracebacks_omit_frames_of_ray_and_horovod():
    assert calls.shortened(SHOWN).splitlines() == [
        "ray::BaseHorovodWorker.execute() (pid=7, ip=10.0.0.1)",
        '  File "/home/me/train.py", line 24, in train',
        '    raise ValueError("no")',
        "    ^^^^^^^^^^",
        "ValueError: no",
    ]


def test_short_reason_of_a_dead_actor():
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
    assert done.describe() == "its process has died: The actor is dead because its worker process has died."


@pytest.mark.parametrize(
    ("error", "victim"), [(HorovodInternalError("lost"), True), (NoPlaceError("gone"), True), (ValueError("no"), False)]
)
def test_errors_caused_by_other_ranks(error, victim):
    assert CallResult("", 0, error=error).victim is victim


def test_errors_name_rank_host_and_reason():
    error = CallResult("", 3, error=ValueError("no")).raised("rank 3 on host a", "a", 3)
    assert str(error) == "rank 3 on host a: ValueError: no"
    assert (error.rank, error.host, error.exit_code) == (3, "a", 1)
