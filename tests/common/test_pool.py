"""The pool of worker processes itself: what tests rely on when something goes wrong."""

import os
import re
import sys
import time

import pytest

from tests.pool import AWAKE, PLAIN, Fleets, Kind, Pool, RemoteTraceback, WorkerDied
from tests.stuck import describe


@pytest.fixture
def own_fleets():
    """Fleets of this test only."""
    made = Fleets()
    yield made
    made.close()


def test_results_come_by_rank_and_processes_and_settings_are_those_of_the_job(pool):
    def work(offset, *, factor):
        return int(os.environ["HOROVOD_RANK"]) * factor + offset, os.environ.get("HOROVOD_TRANSPORT"), os.getpid()

    first = pool(3).run(work, 5, factor=10)
    assert [value for value, *_ in first] == [5, 15, 25]
    second = pool(2, HOROVOD_TRANSPORT="tcp").run(work, 5, factor=1)
    assert [transport for _, transport, _ in first + second] == [None] * 3 + ["tcp"] * 2
    assert {pid for *_, pid in second} < {pid for *_, pid in first}, "processes are kept"


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


def test_a_dead_worker_is_reported_and_replaced(pool):
    with pytest.raises(WorkerDied, match="exit code 9"):
        pool(2).run(lambda: os._exit(9) if os.environ["HOROVOD_RANK"] == "0" else None)
    assert pool(2).run(lambda: 1) == [1, 1]


def test_a_hung_worker_is_reported_with_its_stacks_and_replaced(pool):
    def hang_here():
        time.sleep(600)

    with pytest.raises(WorkerDied, match=r"did not answer within 0\.5 s") as caught:
        pool(2).run(hang_here, timeout=0.5)
    assert str(caught.value).count("in hang_here") == 2, "the stacks of both are shown"
    engine = re.findall(r"^\d+ hvd-engine [A-Z] \d+\.\d\d \d+\.\d\d call -?\d+", str(caught.value), re.M)
    assert len(engine) == 2, "and what the threads of both do"
    assert pool(2).run(lambda: 2) == [2, 2]


def test_stacks_outside_python_come_from_gdb(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(os.getpid(), native=True).endswith("no gdb here for stacks outside Python")
    gdb = tmp_path / "gdb"
    gdb.write_text('#!/bin/sh\necho "Loading: $*"\necho "Thread 1 (LWP 7)"\necho "#0  poll ()"\n')
    gdb.chmod(0o755)
    assert describe(os.getpid(), native=True).endswith("\nThread 1 (LWP 7)\n#0  poll ()")


def test_a_kind_decides_environment_faces_and_imports_and_idle_fleets_lose_their_processes(own_fleets):
    kinds = [Kind(("tests", "one"), (("NUMBER", str(i)),), ("wave",)) for i in range(AWAKE + 1)]
    pools = [Pool(own_fleets.of(kind), 1, ()) for kind in (PLAIN, *kinds)]

    def work():
        from horovod.common.state import state

        return os.environ.get("NUMBER"), "wave" in sys.modules, "one" in state.faces, os.getpid()

    first = [pool.run(work)[0] for pool in pools]
    assert [found[:3] for found in first] == [(None, False, False), ("0", True, True), ("1", True, True)]
    own_fleets.of(kinds[-1])
    assert own_fleets.of(kinds[0]).pids == [], "asking for it did not start it"
    assert pools[0].run(work) == [first[0]], "the plain one keeps its processes"
