"""The pool itself: what tests rely on when something goes wrong."""

import os
import re
import sys
import time
import types

import pytest

from tests.pool import AWAKE, PLAIN, Fleets, Kind, Pool, RemoteTraceback, WorkerDied
from tests.stuck import describe


def test_results_by_rank_and_processes_are_kept(pool):
    def work(offset, *, factor):
        return int(os.environ["HOROVOD_RANK"]) * factor + offset, os.getpid()

    first = pool(3).run(work, 5, factor=10)
    assert [value for value, _ in first] == [5, 15, 25]
    assert {pid for _, pid in pool(2).run(work, 5, factor=1)} < {pid for _, pid in first}


def test_exceptions_come_with_the_remote_traceback(pool):
    def work():
        if int(os.environ["HOROVOD_RANK"]) == 1:
            raise KeyError("on purpose")
        time.sleep(60)

    begin = time.monotonic()
    with pytest.raises(WorkerDied, match="did not answer") as caught:
        # Rank 0 does not end by itself, so it is killed; that comes out only because rank 0 is first.
        pool(2).run(work)
    assert time.monotonic() - begin < 40
    assert "time.sleep" in str(caught.value) or "test_pool" in str(caught.value)

    results = pool(2).run(lambda: 1 / (int(os.environ["HOROVOD_RANK"]) - 1), errors=True)
    assert results[0] == -1.0
    assert isinstance(results[1], ZeroDivisionError)
    with pytest.raises(ZeroDivisionError) as raised:
        pool(2).run(lambda: 1 / (int(os.environ["HOROVOD_RANK"]) - 1))
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "lambda" in str(raised.value.__cause__)


def test_a_dead_worker_is_reported_and_replaced(pool):
    def work():
        if int(os.environ["HOROVOD_RANK"]) == 0:
            os._exit(9)

    with pytest.raises(WorkerDied, match="exit code 9"):
        pool(2).run(work)
    assert pool(2).run(lambda: 1) == [1, 1]


def test_a_hung_worker_is_reported_and_replaced(pool):
    def hang_here():
        time.sleep(600)

    begin = time.monotonic()
    with pytest.raises(WorkerDied, match=r"did not answer within 0\.5 s") as caught:
        pool(2).run(hang_here, timeout=0.5)
    assert str(caught.value).count("in hang_here") == 2, "the stacks of both are shown"
    engine = re.findall(r"^\d+ hvd-engine [A-Z] \d+\.\d\d \d+\.\d\d call -?\d+", str(caught.value), re.M)
    assert len(engine) == 2, "and what the threads of both do"
    assert time.monotonic() - begin < 20
    assert pool(2).run(lambda: 2) == [2, 2]


def test_stacks_outside_python_are_gdbs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(os.getpid(), native=True).endswith("no gdb here for stacks outside Python")
    gdb = tmp_path / "gdb"
    gdb.write_text('#!/bin/sh\necho "Loading: $*"\necho "Thread 1 (LWP 7)"\necho "#0  poll ()"\n')
    gdb.chmod(0o755)
    assert describe(os.getpid(), native=True).endswith("\nThread 1 (LWP 7)\n#0  poll ()")
    assert "Thread" not in describe(os.getpid())


def test_environment_is_a_parameter(pool):
    def work():
        return os.environ.get("HOROVOD_TRANSPORT"), os.environ["HOROVOD_SIZE"]

    assert pool(2, HOROVOD_TRANSPORT="tcp").run(work) == [("tcp", "2")] * 2
    assert pool(2).run(work) == [(None, "2")] * 2


def test_a_kind_decides_environment_faces_and_imports():
    kind = Kind(("tests", "one", "two"), (("POOL_TEST", "yes"),), ("wave",))

    def work():
        from horovod.common.state import state

        return os.environ["POOL_TEST"], "wave" in sys.modules, sorted(state.faces)

    fleets = Fleets()
    try:
        assert Pool(fleets.of(kind), 2, ()).run(work) == [("yes", True, ["one", "tests", "two"])] * 2
    finally:
        fleets.close()


def test_from_job_to_job_keras_counts_from_the_beginning():
    def plant():
        cleared = []
        keras = types.ModuleType("keras")
        keras.backend = types.SimpleNamespace(clear_session=lambda: cleared.append(1))
        keras.cleared = cleared
        sys.modules["keras"] = keras

    fleets = Fleets()
    try:
        fleet = fleets.of(Kind(("tests",)))
        Pool(fleet, 1, ()).run(plant)
        assert Pool(fleet, 1, ()).run(lambda: len(sys.modules["keras"].cleared)) == [0], "the same job"
        assert Pool(fleet, 2, ()).run(lambda: "keras" in sys.modules and len(sys.modules["keras"].cleared))[0] == 1
    finally:
        fleets.close()


def test_fleets_that_rest_lose_their_processes_and_get_new_ones():
    kinds = [Kind(("tests",), (("NUMBER", str(i)),)) for i in range(AWAKE + 1)]
    fleets = Fleets()
    try:
        pools = [Pool(fleets.of(kind), 1, ()) for kind in (PLAIN, *kinds)]

        def work():
            return os.environ.get("NUMBER"), os.getpid()

        pids = [pool.run(work)[0][1] for pool in pools]
        fleets.of(kinds[-1])
        assert fleets.of(kinds[0]).pids == [], "asking for it did not start it"
        assert pools[0].run(work) == [(None, pids[0])], "the plain one never rests"
        number, pid = pools[1].run(work)[0]
        assert (number, pid != pids[1]) == ("0", True)
    finally:
        fleets.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
