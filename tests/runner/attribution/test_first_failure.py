import signal

import pytest

from horovod.runner.attribution.first_failure import RankEnd, exception_in_brackets, find_exception, has_culprit, judge
from horovod.runner.base.job_result import describe_status

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 2, in f\n    g()\n'
OWN = "loading\n" + TRACE + "ValueError: bad\nbatch\n"
VICTIM = TRACE + "horovod.common.exceptions.HorovodInternalError: rank 1 has left\n"
CAUSED = VICTIM + "\nThe above exception was the direct cause of the following exception:\n\n" + TRACE + "OSError: x\n"
HANDLED = VICTIM + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE + "KeyError: 1\n"

IGNORED = "Exception ignored in: <function Loader.__del__ at 0x7f0>\n" + TRACE + "AttributeError: queue\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
THREAD = "Exception in thread Thread-1 (prefetch):\n" + TRACE + "OSError: pipe\n"


def end(rank, status, tail="", **options):
    return RankEnd(rank, "h", status, tail, **options)


def test_healthy_job():
    assert judge([end(0, 0), end(1, 0)]) is None
    assert judge([]) is None


def test_the_first_rank_that_fails_by_itself_is_blamed():
    failure = judge([end(2, 3), end(0, 1, OWN), end(1, -15, stopped=True)])
    assert (failure.rank, failure.exit_code) == (2, 3)
    assert "rank 2 on host h failed first: exit code 3" in failure.text
    assert "stopped by horovodrun: rank 1" in failure.text


def test_victims_are_not_blamed_even_when_they_end_first():
    failure = judge([end(0, 1, VICTIM), end(2, 1, CAUSED), end(3, 1, HANDLED), end(1, 7, OWN)])
    assert (failure.rank, failure.exit_code) == (1, 7)
    assert failure.text.endswith("    ValueError: bad\n    batch")
    assert "ranks 0, 2-3 failed with HorovodInternalError as a consequence" in failure.text


TF = "tensorflow.python.framework.errors_impl."
STACK = (
    "\n\nDetected at node x defined at (most recent call last):\n"
    '  File "a.py", line 2, in f\n\n  File "b.py", line 1, in g\n\n'
)


def test_tensorflow_operations_that_lost_a_rank_are_victims():
    lost = "Horovod allreduce 'x': rank 1 (host h, pid 7) was lost\n"
    for text in (
        TRACE + TF + "UnknownError: Graph execution error:" + STACK + lost,
        TRACE + TF + "UnknownError: {{op}} " + lost,
    ):
        assert judge([end(0, 1, text), end(1, 1, OWN)]).rank == 1
    assert judge([end(0, 1, TRACE + TF + "UnknownError: a file\n"), end(1, 1, OWN)]).rank == 0


def test_a_rank_still_exiting_when_the_job_stopped_is_blamed():
    failure = judge([end(0, 1, VICTIM), end(1, -15, OWN, stopped=True, tail_at_stop=OWN)])
    assert (failure.rank, failure.exit_code) == (1, 1)
    assert "ValueError: bad" in failure.text


def test_the_first_victim_is_named_without_other_failures():
    failure = judge([end(1, 1, VICTIM), end(0, 1, VICTIM)])
    assert failure.rank == 1
    assert "rank 1 has left" in failure.text


def test_a_rank_that_left_early_is_named():
    failure = judge([end(1, 0), end(0, 1, VICTIM)])
    assert failure.rank == 0
    assert "may have exited too early, while others still needed it: rank 1" in failure.text
    assert "too early" not in judge([end(1, 0), end(0, 1, OWN)]).text


LOST = "horovod.common.exceptions.HorovodInternalError: rank 1 (host h, pid 7) has left the job: {}; in flight: x\n"
WAITED = "ValueError: init: rank 0 (host h) waited 30 s for rank {} (of 4) to call hvd.init(); see the output\n"


@pytest.mark.parametrize(
    ("reason", "how"),
    [
        ("the process ended", "it ended without an error while others still needed it"),
        (
            "the process ended after 9 steps (1 epoch, with 9 batches in the last one)",
            "it ended without an error after 9 steps (1 epoch, with 9 batches in the last one) while others still "
            "needed it",
        ),
        ("hvd.shutdown() was called", "it left the job (hvd.shutdown() was called) while others still needed it"),
    ],
)
def test_a_rank_that_victims_report_as_gone_is_blamed(reason, how):
    left = TRACE + LOST.format(reason)
    failure = judge([end(1, 0, "a warning\n"), end(0, 1, left), end(2, 1, left)])
    assert (failure.rank, failure.exit_code) == (1, 1)
    lines = failure.text.splitlines()
    assert lines[0] == "ranks 0, 2 failed with HorovodInternalError as a consequence"
    assert lines[1:4] == [f"rank 1 on host h failed first: {how}", "its last lines on stderr:", "    a warning"]
    assert lines[4] == "what rank 0 on host h says:"
    assert lines[5] == "    " + LOST.format(reason).rstrip()
    assert len(lines) == 6
    assert judge([end(1, 0), end(0, 1, left), end(2, 3)]).rank == 2


def test_signals_are_named_and_become_exit_codes():
    failure = judge([end(1, -signal.SIGKILL, "epoch 3\nepoch 4\n"), end(0, 1, VICTIM)])
    assert failure.exit_code == 137
    assert "killed by signal 9 (SIGKILL), perhaps because" in failure.text
    assert "out of memory" in failure.text
    assert failure.text.endswith("    epoch 3\n    epoch 4")
    assert "signal 11 (SIGSEGV)" in describe_status(139)
    assert describe_status(200) == "exit code 200"


def test_commands_that_cannot_be_started():
    failure = judge([end(0, 127, error="cannot start 'x': not found")])
    assert (failure.exit_code, failure.text) == (127, "rank 0 on host h failed first: cannot start 'x': not found")


def test_the_last_exception_is_found_after_a_progress_bar():
    lines, victim = find_exception("old\n" + OWN + "\n\r 50%|##\r" + TRACE + "KeyError: 'k'\n")
    assert lines[-1] == "KeyError: 'k'"
    assert not victim


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("", ""),
        ("loading\n", ""),
        (OWN, " (ValueError: bad)"),
        (CAUSED, " (OSError: x)"),
        (TRACE + "KeyError: " + "k" * 300 + "\n", " (KeyError: " + "k" * 190 + ")"),
    ],
)
def test_an_exception_behind_an_exit_status(tail, message):
    assert exception_in_brackets(tail) == message


@pytest.mark.parametrize("side", [IGNORED, IGNORED + HANDLING + TRACE + "KeyError: 2\n", THREAD, THREAD + IGNORED])
@pytest.mark.parametrize("gap", ["", "\n"])
def test_errors_that_ended_no_process_are_ignored(side, gap):
    for text in (VICTIM + gap + side, side + gap + VICTIM):
        lines, victim = find_exception(text)
        assert lines[-1].endswith("HorovodInternalError: rank 1 has left")
        assert victim
    assert find_exception(OWN + gap + side)[0][-1] == "batch"
    assert not find_exception(OWN + gap + side)[1]
    assert judge([end(0, 1, VICTIM + gap + side), end(1, 7, OWN)]).rank == 1


def test_the_exception_of_a_thread_is_shown_when_there_is_no_other():
    lines, victim = find_exception(THREAD + IGNORED)
    assert lines[-1] == "OSError: pipe"
    assert not victim


def test_ranks_that_failed_by_themselves():
    assert not has_culprit([])
    assert not has_culprit([end(0, 0), end(1, 1, VICTIM)])
    assert has_culprit([end(0, 1, VICTIM), end(1, 3)])
    # A rank that never arrived and was not started here cannot be reported.
    waiting = [end(0, 1, TRACE + WAITED.format("2, 3")), end(1, 1, TRACE + WAITED.format("2, 3"))]
    assert judge(waiting).rank == 0


def test_long_messages_keep_their_beginning_and_end():
    tail = TRACE + "RuntimeError: deep\n" + "".join(f"line {n}\n" for n in range(40))
    shown = judge([end(0, 1, tail)]).text.partition("its exception:\n")[2].splitlines()
    assert (len(shown), shown[8].strip(), shown[9:]) == (25, "...", [f"    line {n}" for n in range(24, 40)])
