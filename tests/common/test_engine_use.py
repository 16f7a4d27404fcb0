"""Uses of the engine by horovod.common: objects, process sets, and reasons for a rank's end."""

import os
import signal
import subprocess
import sys
import time

import pytest

from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from tests.ranks import on_ranks

TRANSPORTS = ["auto", pytest.param("tcp", marks=pytest.mark.heavy)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.heavy)])
def test_objects(pool, size, transport):
    def work():
        from horovod.common.objects import allgather_object, broadcast_object

        rank, size = HorovodBasics("tests").rank(), HorovodBasics("tests").size()
        root = size - 1
        own = {"rank": rank, "function": lambda x: x + rank, "large": b"\0\x01" * 300_000}
        got = broadcast_object(own, root)
        assert got["rank"] == root
        assert got["function"](1) == 1 + root
        assert got["large"] == own["large"]
        assert (got is own) == (rank == root)
        gathered = allgather_object(list(range(rank * 1000)), name="lists")
        assert [len(entry) for entry in gathered] == [i * 1000 for i in range(size)]
        return broadcast_object(None, 0, name="none")

    assert pool(size, HOROVOD_TRANSPORT=transport).run(work) == [None] * size


def test_unpicklable_objects_are_an_error_on_every_rank(pool):
    def work():
        import threading

        from horovod.common.objects import allgather_object, broadcast_object

        rank = HorovodBasics("tests").rank()
        own = threading.Lock() if rank == 1 else "fine"
        messages = []
        for call in (lambda: broadcast_object(own, 1, name="b"), lambda: allgather_object(own, name="a")):
            with pytest.raises(ValueError) as caught:
                call()
            messages.append(str(caught.value))
            assert (caught.value.__cause__ is not None) == (rank == 1)
        return messages, broadcast_object(own, 0, name="b"), allgather_object(rank)

    for messages, root, gathered in pool(2).run(work, timeout=20):
        assert "broadcast_object 'b': the object of rank 1 cannot be pickled: TypeError: " in messages[0]
        assert "allgather_object 'a': the object of rank 1 cannot be pickled: TypeError: " in messages[1]
        assert "lock" in messages[0]
        assert (root, gathered) == ("fine", [0, 1])


def test_objects_in_a_process_set(pool):
    def work():
        from horovod.common.objects import allgather_object, broadcast_object

        hvd = HorovodBasics("tests")
        pair = ProcessSet([0, 2])
        hvd.init(process_sets=[pair])
        if not pair.included():
            with pytest.raises(ValueError):
                allgather_object("x", process_set=pair)
            with pytest.raises(ValueError, match="not registered"):
                allgather_object("x", process_set=ProcessSet([0, 1]))
            return None
        gathered = allgather_object(f"rank {hvd.rank()}", process_set=pair)
        return gathered, broadcast_object(hvd.rank(), 2, process_set=pair), pair.rank(), pair.size()

    results = pool(3, initialized=False).run(work)
    both = ["rank 0", "rank 2"]
    assert results == [(both, 2, 0, 2), None, (both, 2, 1, 2)]


@on_ranks(3, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_dynamic_process_sets():
    hvd = HorovodBasics("tests")
    assert global_process_set.ranks == [0, 1, 2]
    assert (global_process_set.size(), global_process_set.rank()) == (3, hvd.rank())
    first = add_process_set([2, 0])
    second = add_process_set(ProcessSet([1]))
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    assert [first.included(), second.included()] == [hvd.rank() != 1, hvd.rank() == 1]
    with pytest.raises(ValueError, match=r"\[0, 2\] exists already"):
        add_process_set([0, 2])
    with pytest.raises(ValueError, match=r"\[0, 1, 2\] exists already"):
        add_process_set(range(3))
    with pytest.raises(ValueError, match=r"rank 3, but the job's ranks are 0 to 2"):
        add_process_set([0, 3])
    with pytest.raises(ValueError, match="no ranks"):
        add_process_set([])
    assert hvd._get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 2], 2: [1]}
    assert remove_process_set(first) is True
    assert (first.process_set_id, first.size(), first.rank()) == (None, None, None)
    assert remove_process_set(first) is False
    assert add_process_set(first) is first
    assert (first.process_set_id, first.ranks, first.size()) == (1, [0, 2], 2)
    assert remove_process_set(first) is True
    assert remove_process_set(global_process_set) is False
    third = add_process_set([0, 1])
    assert third.process_set_id == 1, "freed ids are used again"
    assert remove_process_set(third)
    assert remove_process_set(second)
    assert hvd._get_process_set_ids_and_ranks() == {0: [0, 1, 2]}


@on_ranks(2, initialized=False)
def test_static_sets_cannot_be_changed():
    registered = ProcessSet([0])
    HorovodBasics("tests").init(process_sets=[registered])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        add_process_set([1])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        remove_process_set(registered)
    assert not remove_process_set(global_process_set)
    assert not remove_process_set(ProcessSet([1]))


def wait_for_peers():
    """Return the message of the error that ends an endless series of operations."""
    from horovod.common.objects import allgather_object

    try:
        while True:
            allgather_object("x")
    except HorovodInternalError as error:
        return str(error)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kill_9_is_detected_and_the_rank_named(pool, transport):
    """No operation has a time limit here: without the closed connection the pool would give up."""

    def work():
        if HorovodBasics("tests").rank() == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return wait_for_peers()

    results = pool(3, HOROVOD_TRANSPORT=transport).run(work, errors=True)
    assert "SIGKILL" in str(results[1])
    assert all(message.startswith("rank 1 ") and " was lost: " in message for message in results[::2]), results


def test_a_forked_child_does_not_hide_the_death_of_its_parent(pool, tmp_path):
    """Data loaders fork workers, which inherit all sockets; as long as one is open, peers see no end of file."""

    def work(over):
        from horovod.common.objects import allgather_object

        allgather_object("ready")
        if HorovodBasics("tests").rank() == 1:
            if os.fork() == 0:
                deadline = time.monotonic() + 100
                while not over.exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                os._exit(0)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        message = wait_for_peers()
        over.touch()  # ends the child
        return message

    results = pool(2, HOROVOD_TRANSPORT="tcp").run(work, tmp_path / "over", errors=True)
    assert results[0].startswith("rank 1 "), results
    assert " was lost: " in results[0]


def test_single_process_without_a_launcher():
    code = (
        "from horovod.common.basics import HorovodBasics; from horovod.common.objects import *; h = HorovodBasics('x');"
        "h.init(); print(h.rank(), h.size(), h.local_size(), allgather_object(5), broadcast_object('a', 0))"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "1", "1", "[5]", "a"], done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_idle_job_uses_no_cpu(pool, transport):
    def work():
        from horovod.common.objects import allgather_object

        allgather_object("warm")
        before = time.process_time()
        time.sleep(2)
        used = time.process_time() - before
        allgather_object("end")
        return used

    for used in pool(2, HOROVOD_TRANSPORT=transport).run(work):
        assert used < 0.02
