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


def test_all_well():
    assert judge([end(0, 0), end(1, 0)]) is None
    assert judge([]) is None


def test_the_first_that_fails_by_itself_is_to_blame():
    failure = judge([end(2, 3), end(0, 1, OWN), end(1, -15, stopped=True)])
    assert (failure.rank, failure.exit_code) == (2, 3)
    assert "rank 2 on host h failed first: exit code 3" in failure.text
    assert "stopped by horovodrun: rank 1" in failure.text


def test_victims_are_not_to_blame_even_when_they_end_first():
    failure = judge([end(0, 1, VICTIM), end(2, 1, CAUSED), end(3, 1, HANDLED), end(1, 7, OWN)])
    assert (failure.rank, failure.exit_code) == (1, 7)
    assert failure.text.endswith("    ValueError: bad\n    batch")
    assert "ranks 0, 2-3 failed with HorovodInternalError as a consequence" in failure.text


TF = "tensorflow.python.framework.errors_impl."
STACK = (
    "\n\nDetected at node x defined at (most recent call last):\n"
    '  File "a.py", line 2, in f\n\n  File "b.py", line 1, in g\n\n'
)


def test_what_tensorflow_says_below_its_stacks_is_shown():
    said = "Horovod allreduce 'x': ranks disagree about the shape: [3] on rank 0, [4] on rank 1"
    tail = (
        TRACE
        + TF
        + "FailedPreconditionError: Graph execution error:"
        + STACK
        + said
        + "\n\t [[{{node x}}]]\nlater output\n"
    )
    failure = judge([end(0, 1, tail)])
    assert said in failure.text
    assert "b.py" not in failure.text
    assert "later output" not in failure.text
    assert "the real cause" in judge([end(0, 1, TRACE + "RuntimeError: in:\n\nthe real cause\n")]).text


def test_an_operation_of_tensorflow_that_lost_a_rank_is_a_victim():
    lost = "Horovod allreduce 'x': rank 1 (host h, pid 7) was lost\n"
    for text in (
        TRACE + TF + "UnknownError: Graph execution error:" + STACK + lost,
        TRACE + TF + "UnknownError: {{op}} " + lost,
    ):
        assert judge([end(0, 1, text), end(1, 1, OWN)]).rank == 1
    assert judge([end(0, 1, TRACE + TF + "UnknownError: a file\n"), end(1, 1, OWN)]).rank == 0


def test_a_victim_that_its_own_library_aborts_stays_a_victim():
    assert judge([end(0, -6, VICTIM), end(1, -9)]).rank == 1


def test_one_that_was_still_ending_when_the_job_was_stopped_is_to_blame():
    failure = judge([end(0, 1, VICTIM), end(1, -15, OWN, stopped=True, tail_at_stop=OWN)])
    assert (failure.rank, failure.exit_code) == (1, 1)
    assert "ValueError: bad" in failure.text


def test_what_a_rank_says_only_because_it_is_stopped_does_not_count():
    failure = judge([end(0, 1, VICTIM), end(1, 1, TRACE + "KeyboardInterrupt\n", stopped=True, tail_at_stop="")])
    assert failure.rank == 0


def test_the_first_victim_is_named_when_there_is_nobody_else():
    failure = judge([end(1, 1, VICTIM), end(0, 1, VICTIM)])
    assert failure.rank == 1
    assert "rank 1 has left" in failure.text


def test_a_rank_that_left_early_is_pointed_at():
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
def test_a_rank_that_victims_say_has_left_is_to_blame(reason, how):
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


def test_a_rank_that_never_came_is_to_blame():
    waiting = [end(0, 1, TRACE + WAITED.format("2, 3")), end(1, 1, TRACE + WAITED.format("2, 3"))]
    stopped = [end(2, -15, "loading\n", stopped=True), end(3, -15, stopped=True)]
    failure = judge([*waiting, *stopped])
    assert (failure.rank, failure.exit_code) == (2, 1)
    assert "rank 2 on host h failed first: it did not call hvd.init() within 30 s\nneither did rank 3\n" in failure.text
    assert "    loading\n" in failure.text
    # A crash, or a displayed reason for not arriving, is more specific.
    assert "exit code 5" in judge([end(2, 5), *waiting]).text
    assert "ValueError: bad" in judge([*waiting, end(2, -15, OWN, stopped=True, tail_at_stop=OWN)]).text


def test_signals_are_named_and_become_exit_codes():
    failure = judge([end(1, -signal.SIGKILL, "epoch 3\nepoch 4\n"), end(0, 1, VICTIM)])
    assert failure.exit_code == 137
    assert "killed by signal 9 (SIGKILL), perhaps because" in failure.text
    assert "out of memory" in failure.text
    assert failure.text.endswith("    epoch 3\n    epoch 4")
    assert "signal 11 (SIGSEGV)" in describe_status(139)
    assert describe_status(200) == "exit code 200"


def test_a_command_that_cannot_be_started():
    failure = judge([end(0, 127, error="cannot start 'x': not found")])
    assert (failure.exit_code, failure.text) == (127, "rank 0 on host h failed first: cannot start 'x': not found")


def test_the_last_exception_is_found_behind_a_progress_bar():
    lines, victim = find_exception("old\n" + OWN + "\n\r 50%|##\r" + TRACE + "KeyError: 'k'\n")
    assert lines[-1] == "KeyError: 'k'"
    assert not victim


def test_an_older_victim_error_that_was_survived_does_not_count():
    assert not find_exception(VICTIM + "restored, going on\n\n" + OWN)[1]


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ("", ""),
        ("loading\n", ""),
        (OWN, " (ValueError: bad)"),
        (CAUSED, " (OSError: x)"),
        (TRACE + "KeyError: " + "k" * 300 + "\n", " (KeyError: " + "k" * 190 + ")"),
    ],
)
def test_an_exception_behind_an_exit_status(tail, said):
    assert exception_in_brackets(tail) == said


def test_no_traceback():
    assert find_exception("just words\n") == ([], False)


def test_long_tracebacks_are_shortened_but_keep_the_end():
    frames = "".join(f'  File "a.py", line {n}, in f\n' for n in range(100))
    text = judge([end(0, 1, "Traceback (most recent call last):\n" + frames + "RuntimeError: deep\n")]).text
    assert len(text.splitlines()) < 30
    assert text.endswith("    RuntimeError: deep")


def test_of_long_messages_the_beginning_and_the_end_are_kept():
    def shown(count):
        said = "".join(f"line {n}\n" for n in range(count))
        return (
            judge([end(0, 1, TRACE + "RuntimeError: deep\n" + said)]).text.partition("its exception:\n")[2].splitlines()
        )

    short = len(shown(0))
    for count in range(30):
        lines = shown(count)
        if short + count <= 24:
            assert lines[short:] == [f"    line {n}" for n in range(count)]
        else:
            assert len(lines) == 25
            assert lines[:8] == shown(20)[:8]
            assert [n for n, line in enumerate(lines) if line.strip() == "..."] == [8]
            assert lines[9:] == [f"    line {n}" for n in range(count - 16, count)]


def test_marks_below_the_code_are_left_out():
    text = judge([end(0, 1, TRACE + "    ~^^^~\nRuntimeError: x\n")]).text
    assert "^" not in text
    assert "    g()" in text


@pytest.mark.parametrize("side", [IGNORED, IGNORED + HANDLING + TRACE + "KeyError: 2\n", THREAD, THREAD + IGNORED])
@pytest.mark.parametrize("gap", ["", "\n"])
def test_what_ended_no_process_does_not_count(side, gap):
    for text in (VICTIM + gap + side, side + gap + VICTIM):
        lines, victim = find_exception(text)
        assert lines[-1].endswith("HorovodInternalError: rank 1 has left")
        assert victim
    assert find_exception(OWN + gap + side)[0][-1] == "batch"
    assert not find_exception(OWN + gap + side)[1]
    assert judge([end(0, 1, VICTIM + gap + side), end(1, 7, OWN)]).rank == 1


def test_an_ignored_exception_is_no_reason():
    assert find_exception("a\n" + IGNORED) == ([], False)
    failure = judge([end(0, 1, VICTIM), end(1, -15, IGNORED, stopped=True, tail_at_stop=IGNORED)])
    assert failure.rank == 0


def test_the_exception_of_a_thread_is_shown_when_there_is_no_other():
    lines, victim = find_exception(THREAD + IGNORED)
    assert lines[-1] == "OSError: pipe"
    assert not victim


def test_where_an_exception_ends():
    assert find_exception(TRACE + "ValueError: bad\n\nlater words\n")[0][-1] == "ValueError: bad"
    assert find_exception(CAUSED)[0][-1] == "OSError: x"  # the last of a chain of exceptions
    torn = TRACE.replace("    g()", "\n    g()") + "ValueError: bad\nmore\n\nlater words\n"
    assert find_exception(torn)[0][-2:] == ["ValueError: bad", "more"]


def test_who_has_failed_by_itself():
    assert not has_culprit([])
    assert not has_culprit([end(0, 0), end(1, 1, VICTIM)])
    assert has_culprit([end(0, 1, VICTIM), end(1, 3)])
    # A rank that never arrived and was not started here cannot be reported.
    waiting = [end(0, 1, TRACE + WAITED.format("2, 3")), end(1, 1, TRACE + WAITED.format("2, 3"))]
    assert judge(waiting).rank == 0


def test_statuses_next_to_those_of_signals():
    assert describe_status(128) == "exit code 128"
    assert describe_status(129).endswith("signal 1 (SIGHUP)")
    assert describe_status(-64) == "killed by signal 64 (SIGRTMAX)"
    assert describe_status(-70) == "killed by signal 70"
