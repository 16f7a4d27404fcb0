"""Handles: futures of concurrent.futures that can be awaited."""

import asyncio
import concurrent.futures
import gc
import threading
import time

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.ranks import on_ranks

PATIENCE = 50.0  # seconds; only a fault makes anything wait this long


def ones(value=1.0):
    return np.full(3, value)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "horovod-handles"]


@on_ranks(2)
def test_futures():
    rank, before = hvd.rank(), len(threads())
    handle = hvd.allreduce_async(ones(), op=hvd.Sum, name="a")
    assert isinstance(handle, concurrent.futures.Future)
    assert handle.result(PATIENCE).tolist() == [2.0] * 3
    assert handle.exception() is None
    assert hvd.poll(handle)
    assert hvd.synchronize(handle) is hvd.synchronize(handle) is handle.result()
    assert len(threads()) == before  # the caller waited by itself

    # Rank 1 submits only after rank 0 has been seen waiting.
    if rank == 0:
        handle = hvd.allreduce_async(ones(), op=hvd.Sum, name="b")
        for timeout in (0, 0.02):
            with pytest.raises(concurrent.futures.TimeoutError):
                handle.result(timeout)
        with pytest.raises(concurrent.futures.TimeoutError):
            handle.exception(0)
        assert not handle.done()
        assert not hvd.poll(handle)
        assert handle.running()
        assert not handle.cancel()
        hvd.broadcast_object("go", 0)
    else:
        hvd.broadcast_object(None, 0)
        handle = hvd.allreduce_async(ones(), op=hvd.Sum, name="b")
    assert handle.result(PATIENCE).tolist() == [2.0] * 3

    with pytest.raises(ValueError, match="synchronize: handle must be one that an _async call returned, got 3, a int"):
        hvd.synchronize(3)
    with pytest.raises(ValueError, match=r"poll: handle must be .*, got None"):
        hvd.poll(None)


@on_ranks(2)
def test_callbacks():
    called = threading.Event()
    handle = hvd.allreduce_async(ones(), op=hvd.Sum)
    handle.add_done_callback(lambda it: called.set() if it is handle else None)
    assert called.wait(PATIENCE)
    late = []
    handle.add_done_callback(late.append)
    assert late == [handle]

    handles = [hvd.allreduce_async(ones(i), op=hvd.Sum, name=f"many.{i}") for i in range(20)]
    done, waiting = concurrent.futures.wait(handles, PATIENCE)
    assert (len(done), len(waiting)) == (20, 0)
    handles = [hvd.allreduce_async(ones(i), op=hvd.Sum, name=f"many.{i}") for i in range(20)]
    assert set(concurrent.futures.as_completed(handles, PATIENCE)) == set(handles)
    assert [handle.result()[0] for handle in handles] == [2.0 * i for i in range(20)]
    assert len(threads()) == 1


@on_ranks(2)
def test_await():
    rank = hvd.rank()

    async def one_after_another():
        assert (await hvd.allreduce_async(ones(), op=hvd.Sum)).tolist() == [2.0] * 3
        handle = hvd.allgather_async(np.array([rank]))
        handle.result(PATIENCE)
        assert (await handle).tolist() == [0, 1]
        assert (await handle).tolist() == [0, 1]
        gathered = await asyncio.gather(*(hvd.allreduce_async(ones(i), op=hvd.Max) for i in range(10)))
        assert [result[0] for result in gathered] == list(range(10))

    async def out_of_order():
        # Rank 1 requests "first" only after "second" is complete.
        handles = {}
        if rank == 0:
            handles["first"] = hvd.allreduce_async(ones(), name="first")
        waiting = [asyncio.ensure_future(asyncio.wrap_future(handle)) for handle in handles.values()]
        await asyncio.sleep(0)
        assert (await hvd.allreduce_async(ones(), op=hvd.Sum, name="second"))[0] == 2.0
        if rank == 1:
            await hvd.allreduce_async(ones(), name="first")
        await asyncio.gather(*waiting)

    async def the_loop_goes_on():
        ticks = 0
        if rank == 0:
            task = asyncio.ensure_future(asyncio.wrap_future(hvd.allreduce_async(ones(), name="ticks")))
            while not task.done() and ticks < 5:
                await asyncio.sleep(0.001)
                ticks += 1
            hvd.broadcast_object("go", 0)
            await task
            assert ticks == 5
        else:
            hvd.broadcast_object(None, 0)
            await hvd.allreduce_async(ones(), name="ticks")

    for function in (one_after_another, out_of_order, the_loop_goes_on):
        asyncio.run(asyncio.wait_for(function(), PATIENCE))
    assert len(threads()) == 1


@on_ranks(2)
def test_failures():
    rank = hvd.rank()

    def disagree():
        return hvd.allreduce_async(np.ones(3 + rank), name="unlike")

    async def waits():
        await disagree()

    called = threading.Event()
    watched = disagree()
    watched.add_done_callback(lambda it: called.set() if it.exception() else None)
    assert called.wait(PATIENCE)
    for call in (lambda: disagree().result(), lambda: hvd.synchronize(disagree()), lambda: asyncio.run(waits())):
        with pytest.raises(hvd.HorovodInternalError, match=r"(?s)unlike.*\[[34]\].*\[[34]\]"):
            call()
    error = disagree().exception(PATIENCE)
    assert isinstance(error, hvd.HorovodInternalError)
    group = hvd.grouped_allreduce_async([ones(), np.ones(2 + rank)], name="group")
    with pytest.raises(hvd.HorovodInternalError, match="group"):
        group.result(PATIENCE)
    # A name in flight is rejected at the call, and the first operation continues.
    if rank == 0:
        first = hvd.allreduce_async(ones(), name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(ones(), name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(ones(), name="twice")
    assert first.result(PATIENCE).tolist() == [1.0] * 3


@on_ranks(2)
def test_forgotten_handles():
    """No reference to the handle or the array remains; the engine still uses the memory."""
    for turn in range(5):
        hvd.allreduce_async(np.full(100_000, float(turn)), name=f"dropped.{turn}")
        hvd.allgather_async(np.full(100_000, float(turn)), name=f"gathered.{turn}")
        gc.collect()
        rubbish = np.full(100_000, -1.0)
        assert hvd.allreduce(rubbish, op=hvd.Sum)[0] == -2.0
    from horovod._arrays import handles as pending

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        hvd.barrier()
        if hvd.allreduce(np.array(len(pending._parked)), op=hvd.Max) == 0:
            return
    raise AssertionError("what is done is not let go")


@on_ranks(2, initialized=False)
def test_shutdown():
    hvd.init()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(ones(), name="only one's")
        watched = hvd.allreduce_async(ones(), name="likewise")
        called = threading.Event()
        watched.add_done_callback(lambda it: called.set())
        hvd.shutdown()
        for one in (handle, watched):
            with pytest.raises(hvd.HorovodInternalError):
                one.result(PATIENCE)
        assert called.wait(PATIENCE)
        with pytest.raises(RuntimeError, match="shut down"):
            hvd.allreduce(ones())
    else:
        with pytest.raises(hvd.HorovodInternalError):  # possibly at once, if the other rank has left already
            hvd.allreduce_async(ones(), name="unowned").result(PATIENCE)
        hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(ones(), op=hvd.Sum).tolist() == [2.0] * 3
    hvd.shutdown()
