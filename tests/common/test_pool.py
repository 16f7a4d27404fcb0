"""Failure handling of the pool of worker processes, on which tests rely."""

import os
import re
import time

import pytest

from tests.pool import RemoteTraceback, WorkerDied


def test_exceptions_come_with_the_remote_traceback(pool):
    def work():
        return 1 / (int(os.environ["HOROVOD_RANK"]) - 1)

    results = pool(2).run(work, errors=True)
    assert results[0] == -1.0
    assert isinstance(results[1], ZeroDivisionError)
    with pytest.raises(ZeroDivisionError) as raised:
        pool(2).run(work)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "in work" in str(raised.value.__cause__)


def test_a_hung_worker_is_reported_with_its_stacks_and_replaced(pool):
    def hang_here():
        time.sleep(600)

    with pytest.raises(WorkerDied, match=r"did not answer within 0\.5 s") as caught:
        pool(2).run(hang_here, timeout=0.5)
    assert str(caught.value).count("in hang_here") == 2, "the stacks of both are shown"
    engine = re.findall(r"^\d+ hvd-engine [A-Z] \d+\.\d\d \d+\.\d\d call -?\d+", str(caught.value), re.M)
    assert len(engine) == 2, "and what the threads of both do"
    assert pool(2).run(lambda: 2) == [2, 2]
