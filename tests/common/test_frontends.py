"""Frontends of one process share one engine; each has its own names and membership."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

from horovod import _core
from horovod.common import dtypes, frontends, objects
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import Sum
from tests.ranks import on_ranks


def start(frontend, name, array, kind=_core.KIND_ALLREDUCE):
    """Start a sum of int64 in place."""
    address = array.ctypes.data
    return frontend.submit(kind, name, address, address, array.shape, dtypes.INT64, Sum, 0, 1.0, 1.0, 0, None, "", 0)


def values(rank, which):
    return np.full(5, 10 * which + rank, np.int64)


@on_ranks(2, initialized=False)
def test_equal_names_do_not_meet():
    basics = {one.name: HorovodBasics(one.name) for one in (frontends.TORCH, frontends.TENSORFLOW, frontends.KERAS)}
    for one in basics.values():
        one.init()
    rank, size = basics["torch"].rank(), basics["torch"].size()
    table = [frontends.TORCH, frontends.TENSORFLOW, frontends.KERAS]
    for step in range(10):
        for name in ("same", ""):
            arrays = [values(rank, which) for which in range(3)]
            order = [(which + rank * (step % 2)) % 3 for which in range(3)]
            works = {which: start(table[which], name, arrays[which]) for which in order}
            for which, work in works.items():
                work.wait()
                assert arrays[which].tolist() == [sum(10 * which + r for r in range(size))] * 5, (step, name, which)
    for frontend in (None, *table):
        assert objects.broadcast_object(f"{rank}", 1, "object", frontend=frontend) == "1"
    assert [one.rank() for one in basics.values()] == [rank] * 3


@on_ranks(2, initialized=False)
def test_frontends_shut_down_and_init_independently():
    from horovod.common.frontends import state  # not pickled along with the function

    torch, tensorflow = HorovodBasics("torch"), HorovodBasics("tensorflow")
    with pytest.raises(ValueError, match="init"):
        torch.rank()
    torch.init()
    with pytest.raises(ValueError, match="init"):
        tensorflow.rank()
    # Not initialized yet, or shut down by the previous test: this process serves them all.
    with pytest.raises((ValueError, HorovodInternalError), match=r"call hvd.init\(\)"):
        start(frontends.TENSORFLOW, "a", values(0, 0))
    tensorflow.init()
    rank, size = tensorflow.rank(), tensorflow.size()
    engine = state.engine
    for _ in range(2):
        torch.shutdown()
        torch.shutdown()
        assert not torch.is_initialized()
        assert tensorflow.is_initialized()
        with pytest.raises(ValueError, match="init"):
            torch.rank()
        with pytest.raises(HorovodInternalError, match="shut down"):
            start(frontends.TORCH, "a", values(rank, 0))
        with pytest.raises(HorovodInternalError, match="shut down"):
            frontends.TORCH.require_engine()
        array = values(rank, 1)
        start(frontends.TENSORFLOW, "a", array).wait()
        assert array[0] == sum(10 + r for r in range(size))
        torch.init()
        assert state.engine is engine
        array = values(rank, 2)
        start(frontends.TORCH, "a", array).wait()
        assert array[0] == sum(20 + r for r in range(size))
    tensorflow.shutdown()
    assert torch.is_initialized()
    torch.shutdown()
    assert state.engine is None
    with pytest.raises(HorovodInternalError, match="shut down"):
        start(frontends.TENSORFLOW, "a", values(rank, 0))
    tensorflow.init()  # another job
    assert state.engine is not engine
    array = values(rank, 1)
    start(frontends.TENSORFLOW, "a", array).wait()
    assert array[0] == sum(10 + r for r in range(size))
    tensorflow.shutdown()


def ends(how):
    """The job ends under two frontends; one of them begins another job, which the other one joins."""
    from horovod.common.frontends import state

    torch, tensorflow = HorovodBasics("torch"), HorovodBasics("tensorflow")
    torch.init()
    tensorflow.init()
    rank, engine = torch.rank(), state.engine
    start(frontends.TORCH, "a", values(rank, 0)).wait()
    rest = None if how == "leaves" else [0, 1]
    if rank == 2:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        tensorflow.shutdown()
        torch.shutdown()
    else:
        with pytest.raises(HorovodInternalError, match="rank 2"):
            start(frontends.TENSORFLOW, "b", values(rank, 0)).wait()
        tensorflow.init()  # no effect while initialized
        assert state.engine is engine
        torch.shutdown()
    torch.init(rest)
    assert state.engine is not engine
    assert not tensorflow.is_initialized()
    with pytest.raises(HorovodInternalError, match="shut down"):
        start(frontends.TENSORFLOW, "a", values(rank, 0))
    engine = state.engine
    array = values(rank, 0)
    start(frontends.TORCH, "a", array).wait()
    tensorflow.shutdown()  # has no effect on others
    tensorflow.init(rest)
    assert state.engine is engine
    other = values(rank, 1)
    start(frontends.TENSORFLOW, "a", other).wait()
    return torch.size(), array[0], other[0]


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_init_after_a_job_starts_a_new_one_for_all_frontends(pool, how):
    results = pool(3, initialized=False).run(ends, how, errors=True)
    if how == "leaves":
        assert results == [(3, 3, 33)] * 3
    else:
        assert results[:2] == [(2, 1, 21)] * 2
        assert "SIGKILL" in str(results[2])


@on_ranks(2, initialized=False)
def test_requests_of_a_second_frontend_are_checked():
    from horovod.common.process_sets import ProcessSet, add_process_set, remove_process_set

    one, two = HorovodBasics("one"), HorovodBasics("two")
    first = ProcessSet([0])
    one.init(process_sets=[first])
    for arguments, message in [
        ({"comm": [0]}, r"comm is \[0\], but the job that runs for one has world ranks \[0, 1\]; .*first init"),
        ({"process_sets": "dynamic"}, r"process_sets is 'dynamic', but .* one .*static.*first init.*DYNAMIC"),
        (
            {"process_sets": [ProcessSet([0]), ProcessSet([1])]},
            r"process_sets\[1\] with ranks \[1\] .* one.*add_process",
        ),
        ({"process_sets": "static"}, "'dynamic'"),
    ]:
        with pytest.raises(ValueError, match=message):
            two.init(**arguments)
        assert not two.is_initialized()
    second = ProcessSet([0])
    two.init(comm=[1, 0], process_sets=[second])
    assert second.process_set_id == first.process_set_id == 1
    assert second.included() == (two.rank() == 0)
    two.init(comm=[0], process_sets="dynamic")  # no effect while initialized
    one.shutdown()
    two.shutdown()
    assert (first.process_set_id, second.process_set_id, second.ranks) == (None, None, [0])

    one.init(process_sets="dynamic")
    added = add_process_set([1])
    two.init(process_sets="dynamic")
    two.shutdown()
    two.init(process_sets=[second := ProcessSet([1])])
    assert second.process_set_id == added.process_set_id
    assert remove_process_set(second)
    assert added.process_set_id is second.process_set_id is None
    assert not remove_process_set(added)


TRANSPORTS = ["auto", pytest.param("tcp", marks=pytest.mark.heavy)]


def ranks():
    hvd = HorovodBasics("tests")
    local, cross = (hvd.local_rank(), hvd.local_size()), (hvd.cross_rank(), hvd.cross_size())
    return (hvd.rank(), hvd.size(), *local, *cross, hvd.is_homogeneous(), hvd.is_initialized())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 3, pytest.param(4, marks=pytest.mark.heavy)])
def test_ranks(pool, size, transport):
    expected = [(rank, size, rank, size, 0, 1, True, True) for rank in range(size)]
    assert pool(size, HOROVOD_TRANSPORT=transport).run(ranks) == expected


def cycle(count, warm):
    from horovod.common.objects import allgather_object

    hvd = HorovodBasics("tests")
    snapshots = []
    for i in range(count):
        hvd.init()
        assert allgather_object(i) == [i, i]
        hvd.shutdown()
        if i in (warm, count - 1):
            with open("/proc/self/status") as file:
                resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
            with open("/proc/self/maps") as file:
                maps = len(file.readlines())
            tasks = len(os.listdir("/proc/self/task"))
            snapshots.append((len(os.listdir("/proc/self/fd")), tasks, threading.active_count(), maps, resident))
    return snapshots


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_leak_in_100_runs(pool, transport):
    results = pool(2, initialized=False, HOROVOD_TRANSPORT=transport).run(cycle, 100, 30, timeout=120)
    for early, late in results:
        assert all(after <= before for before, after in zip(early[:3], late[:3], strict=True)), "descriptors, threads"
        assert late[3] <= early[3] + 4, "mappings"
        assert late[4] <= early[4] + 4096, "KiB resident"


def test_missing_ranks_are_named_and_init_works_later(pool, tmp_path):
    def work(named):
        hvd = HorovodBasics("tests")
        if int(os.environ["HOROVOD_RANK"]) == 1:
            while not named.exists():
                time.sleep(0.02)
            os.environ["HOROVOD_START_TIMEOUT"] = "60"
            hvd.init()
            return hvd.size()
        before = len(os.listdir("/proc/self/fd")), threading.active_count()
        begin = time.monotonic()
        with pytest.raises(ValueError, match=r"rank 0 \(host localhost\) waited 0\.5 s for rank 1 \(of 2\)"):
            hvd.init()
        assert time.monotonic() - begin < 20
        assert not hvd.is_initialized()
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
        os.environ["HOROVOD_START_TIMEOUT"] = "60"
        named.touch()
        hvd.init()
        return hvd.size()

    assert pool(2, initialized=False, HOROVOD_START_TIMEOUT="0.5").run(work, tmp_path / "named") == [2, 2]


def test_wrong_keys_are_rejected(pool):
    def work():
        from horovod.common.contract.worker_env import make_key, make_key_fd

        if int(os.environ["HOROVOD_RANK"]) == 1:
            os.environ["HOROVOD_KEY_FD"] = str(make_key_fd(make_key()))
        with pytest.raises(ValueError) as caught:
            HorovodBasics("tests").init()
        return str(caught.value)

    own, stranger = pool(2, initialized=False, HOROVOD_START_TIMEOUT="1").run(work)
    assert "waited 1 s for rank 1" in own
    assert "job key is not the launcher's" in stranger


@pytest.mark.parametrize(
    ("name", "value"), [("HOROVOD_CYCLE_TIME", "soon"), ("HOROVOD_SIZE", "x"), ("HOROVOD_GLOO_IFACE", "nope0")]
)
def test_bad_settings_are_named(pool, name, value):
    def work():
        with pytest.raises(ValueError, match=f"{name} must be .*, got '{value}'"):
            HorovodBasics("tests").init()

    pool(2, initialized=False, **{name: value}).run(work)


def test_a_subset_of_ranks_forms_a_job(pool):
    def work():
        rank = int(os.environ["HOROVOD_RANK"])
        hvd = HorovodBasics("tests")
        if rank == 1:
            with pytest.raises(ValueError, match=r"comm must be .* this process \(1\), got \[0, 2\]"):
                hvd.init(comm=[0, 2])
            hvd.init(comm=[1])
        else:
            hvd.init(comm=[2, 0])
        return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()

    assert pool(3, initialized=False).run(work) == [(0, 2, 0, 2), (0, 1, 0, 1), (1, 2, 1, 2)]


@on_ranks(2)
def test_a_forked_child_is_not_part_of_the_job():
    from horovod.common.frontends import state

    hvd = HorovodBasics("tests")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert hvd.rank() == int(os.environ["HOROVOD_RANK"])  # as data loaders do
            assert not hvd.is_initialized()
            with pytest.raises(RuntimeError, match="forked"):
                state.submit()
            with pytest.raises(RuntimeError, match="forked"):
                state.require_engine()
            with pytest.raises(ValueError, match="forked"):
                hvd.init()
            hvd.shutdown()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert hvd.is_initialized()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_thread_affinity_is_by_local_rank(pool, transport):
    def work():
        core = min(os.sched_getaffinity(0))
        hvd = HorovodBasics("tests")
        hvd.init()
        hvd.shutdown()
        before = len(os.listdir("/proc/self/fd"))  # with a rank's permanent mark
        errors = []
        for text in ("4096", f"{core},4096", f"4096,{core}"):
            os.environ["HOROVOD_THREAD_AFFINITY"] = text
            expected = f"HOROVOD_THREAD_AFFINITY must be .*, got {text},.* core 4096"
            with pytest.raises(ValueError, match=expected) as caught:
                hvd.init()
            errors.append(str(caught.value))
        os.environ["HOROVOD_THREAD_AFFINITY"] = f"{core},{core}"
        hvd.init()
        deadline = time.monotonic() + 60  # the engine's thread pins itself when it starts to run
        while time.monotonic() < deadline:
            tasks = []
            for task in os.listdir("/proc/self/task"):
                with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
                    tasks.append(os.sched_getaffinity(int(task)))
            if {core} in tasks:
                break
            time.sleep(0.01)
        after = len(os.listdir("/proc/self/fd"))
        hvd.shutdown()
        assert len(os.listdir("/proc/self/fd")) == before < after
        assert {core} in tasks
        return errors

    for errors in pool(2, initialized=False, HOROVOD_TRANSPORT=transport).run(work):
        assert "local rank 1" in errors[1]
        assert "local rank 0" in errors[2]
