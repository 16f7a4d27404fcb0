"""hvd.should_stop: one rank is asked to stop, and all ranks learn of it at the same step."""

import os
import signal
import threading

import pytest

import horovod.torch as hvd
from horovod.common.ending import signals_named


def _steps(rank_asked: int, number: int, own_handler: bool) -> tuple[list[bool], list[int], str]:
    from horovod.common.ending import stopping

    called: list[int] = []
    before = signal.getsignal(number)
    try:
        if own_handler:
            signal.signal(number, lambda *_: called.append(number))
        decisions = [hvd.should_stop()]
        for step in range(5):
            if hvd.rank() == rank_asked and step == 2:
                os.kill(os.getpid(), number)
            decisions.append(hvd.should_stop())
        assert hvd.max_size() == hvd.size()
        return decisions, called, ""
    finally:
        for signum, handler in stopping._before.items():
            signal.signal(signum, handler)
        stopping._before.clear()
        stopping.listens = False
        stopping.received = 0
        signal.signal(number, before)


def _elsewhere() -> str:
    raised: list[str] = []

    def ask() -> None:
        try:
            hvd.should_stop()
        except ValueError as error:
            raised.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(30)
    return raised[0]


def test_all_ranks_get_the_same_answer_at_the_same_step(pool):
    job = pool(3)
    expected = [False] * 3 + [True] * 3
    assert [decisions for decisions, _, _ in job.run(_steps, 1, signal.SIGTERM, False)] == [expected] * 3
    results = job.run(_steps, 0, signal.SIGUSR1, True)
    assert [decisions for decisions, _, _ in results] == [expected] * 3
    assert [called for _, called, _ in results] == [[signal.SIGUSR1], [], []], "the program's own handler is called too"
    assert all("main thread" in text for text in job.run(_elsewhere))


def test_signals_can_be_given_by_name_or_number():
    assert signals_named("term, SIGUSR1,") == [signal.SIGTERM, signal.SIGUSR1]
    assert signals_named("SIGTERM,TERM") == [signal.SIGTERM], "a handler would call itself"
    assert signals_named(",") == []
    for wrong in ("KILL", "TERM,WINTER"):
        with pytest.raises(ValueError, match="must be names of signals that can be caught"):
            signals_named(wrong)
