"""Failure attribution if no rank failed by an error, from reports instead of output."""

import pytest

from horovod.common.contract.reasons import Called, Ending, Left, Refused, encode
from horovod.runner.agent.messages import Exited
from horovod.runner.attribution.endings import Endings
from horovod.runner.attribution.first_failure import judge

HOSTS = dict.fromkeys(range(4), "h")


def job(*events):
    """Return the attribution for events in this order: reports, (rank, status) of ends, and "stop"."""
    endings = Endings(HOSTS)
    for event in events:
        if event == "stop":
            endings.stop({})
        elif isinstance(event, tuple):
            endings.end(Exited(*event), "")
        else:
            endings.record(encode(event))
    return judge(endings.ends)


LOST = [Ending(0, "lost", [1]), (0, 1), Ending(2, "lost", [1]), (2, 4)]


def test_a_lost_rank_is_blamed_even_with_exit_code_0():
    failure = job(Called(0), Called(1), Called(2), (1, 0), *LOST, "stop", (3, -15))
    assert (failure.rank, failure.exit_code) == (1, 1)
    assert failure.headline.splitlines() == [
        "ranks 0, 2 failed with HorovodInternalError as a consequence",
        "stopped by horovodrun: rank 3",
        "rank 1 on host h failed first: it ended with exit code 0 without leaving the job (as os._exit does), while "
        "others still needed it",
    ]
    # It reports that it has left, and why.
    failure = job(Left(1, "hvd.shutdown() was called"), (1, 0), Ending(0, "left", [1]), (0, 1))
    assert "rank 1 on host h failed first: it left the job (hvd.shutdown() was called) while" in failure.headline


def test_a_lost_rank_that_still_runs():
    failure = job(*LOST, "stop", (1, -9), (3, -15))
    assert failure.rank == 1
    assert (
        "stopped by horovodrun: ranks 1, 3\nrank 1 on host h failed first: the others lost their connections"
        in failure.text
    )


def test_ranks_that_lost_each_other_are_not_blamed():
    assert job(Ending(0, "lost", [1]), (0, 1), Ending(1, "lost", [0]), (1, 1)).rank == 0
    assert job(*LOST, (1, -9)).text.endswith("out of memory")
    assert job(*LOST, Ending(3, "own"), (3, 7)).rank == 3


def test_ranks_without_init_at_the_deadline_are_absent():
    absent = Ending(1, "absent", [0, 2, 3], 5.0)
    failure = job(Called(0), Called(1), absent, (1, 1), Called(3), "stop", (0, -15), (2, -15), (3, -15))
    assert failure.headline.splitlines() == [
        "stopped by horovodrun: ranks 0, 2-3",
        "rank 2 on host h failed first: it did not call hvd.init() within 5 s",
        "neither did rank 3",
        "rank 1 also failed (exit code 1)",
    ]


@pytest.mark.parametrize("line", [b"", b"null", b"[" * 3000, b'{"type":"called","rank":9}', b'{"type":"x"}', b"\xff"])
def test_invalid_reports_are_ignored(line):
    endings = Endings(HOSTS)
    endings.record(line)
    assert endings.called == set()


def test_a_helper_that_tried_to_join():
    failure = job(Refused(0), Ending(0, "own"), (0, 1), Refused(1), Ending(1, "own"), (1, 1))
    assert failure.headline.splitlines()[1].endswith('put it below `if __name__ == "__main__":`')
    assert "__main__" not in job(Refused(1), Ending(0, "own"), (0, 1), "stop", (1, -15)).text
