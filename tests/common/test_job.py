"""init and shutdown with real processes: success, failure, and repetition."""

import contextlib
import os
import threading
import time

import pytest

from horovod.common.basics import HorovodBasics
from tests.ranks import on_ranks

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
def test_100_times_without_a_leak(pool, transport):
    results = pool(2, initialized=False, HOROVOD_TRANSPORT=transport).run(cycle, 100, 30, timeout=120)
    for early, late in results:
        assert all(after <= before for before, after in zip(early[:3], late[:3], strict=True)), "descriptors, threads"
        assert late[3] <= early[3] + 4, "mappings"
        assert late[4] <= early[4] + 4096, "KiB resident"


def test_a_rank_that_does_not_come_is_named_and_init_works_later(pool, tmp_path):
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


def test_a_wrong_key_gets_nowhere(pool):
    def work():
        from horovod.common.contract.worker_env import make_key, make_key_fd

        if int(os.environ["HOROVOD_RANK"]) == 1:
            os.environ["HOROVOD_KEY_FD"] = str(make_key_fd(make_key()))
        with pytest.raises(ValueError) as caught:
            HorovodBasics("tests").init()
        return str(caught.value)

    mine, stranger = pool(2, initialized=False, HOROVOD_START_TIMEOUT="1").run(work)
    assert "waited 1 s for rank 1" in mine
    assert "job key is not the launcher's" in stranger


@pytest.mark.parametrize(
    ("name", "value"), [("HOROVOD_CYCLE_TIME", "soon"), ("HOROVOD_SIZE", "x"), ("HOROVOD_GLOO_IFACE", "nope0")]
)
def test_bad_settings_are_named(pool, name, value):
    def work():
        with pytest.raises(ValueError, match=f"{name} must be .*, got '{value}'"):
            HorovodBasics("tests").init()

    pool(2, initialized=False, **{name: value}).run(work)


def test_a_part_of_the_ranks_forms_a_job(pool):
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
