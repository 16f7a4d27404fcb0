"""Tensors in memory shared by the ranks of a host: Engine.allocate and the allreduce without copies."""

import ctypes
import os

import pytest

from horovod.common.basics import HorovodBasics
from horovod.common.bootstrap import engine_start
from tests.ranks import on_ranks

COUNT = 50_000


def engine():
    from horovod.common.frontends import state

    return state.engine


def sum_int32(memory, name="x"):
    """Sum ``memory`` (Buffer or ctypes array) in place as int32.

    Returns:
        First value, last value, and bytes reduced without staging.
    """
    from horovod import _core
    from horovod.common import dtypes
    from horovod.common.ops import Sum

    before = engine().stats()["unstaged_bytes"]
    view = ints(memory)
    address = memory.address if isinstance(memory, _core.Buffer) else ctypes.addressof(memory)
    shape, int32 = (len(view),), dtypes.CODES["int32"]
    engine().run(
        _core.KIND_ALLREDUCE, name, address, address, shape, int32, Sum, 0, 1.0, 1.0, 0, None, "", 0
    ).wait(20)  # fmt: skip
    return view[0], view[len(view) - 1], engine().stats()["unstaged_bytes"] - before


def ints(memory):
    return memoryview(memory).cast("B").cast("i")


@on_ranks(2, pytest.param(4, marks=pytest.mark.heavy))
def test_tensors_that_all_ranks_share_are_reduced_without_staging():
    hvd = HorovodBasics("tests")
    rank, size = hvd.rank(), hvd.size()
    engine().allocate(4096 * (rank + 1))  # other ranks' tensors have other offsets
    buffer = engine().allocate(4 * COUNT)
    assert bytes(buffer) == bytes(4 * COUNT)
    for step in range(20):  # through negotiation and schedule
        ints(buffer)[0], ints(buffer)[COUNT - 1] = rank + step, 2 * rank
        first, last, unstaged = sum_int32(buffer)
        assert (first, last) == (sum(range(size)) + size * step, 2 * sum(range(size)))
        assert unstaged == 4 * COUNT


def test_a_rank_without_enough_address_space_maps_nothing(pool):
    def work():
        import resource

        basics = HorovodBasics("tests")
        rank = int(os.environ["HOROVOD_RANK"])
        before = resource.getrlimit(resource.RLIMIT_AS)
        if rank == 1:
            with open("/proc/self/statm") as file:  # earlier tests of this process may have mapped much memory
                mapped = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + (8 << 30), before[1]))
        try:
            basics.init()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        shared = engine().allocate(4 * COUNT)
        memory = shared or (ctypes.c_int * COUNT)()
        ints(memory)[0] = 3
        return shared is not None, sum_int32(memory)[0]

    assert pool(2, initialized=False, HOROVOD_ARENA_BYTES=str(1 << 40)).run(work) == [(True, 6), (False, 6)]


def init_with_files_of(most):
    """Return the effect of a file size limit on init: its error, or (whether there is an arena, a sum)."""
    import resource

    basics = HorovodBasics("tests")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        basics.init()
    except ValueError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    memory = (ctypes.c_int * COUNT)()
    ints(memory)[0] = 3
    return engine().allocate(4096) is not None, sum_int32(memory)[0]


@pytest.mark.parametrize(("arena", "most"), [(1 << 30, 64 << 20), (-1, 1 << 20)])
def test_too_low_file_size_limits_are_an_error_that_names_settings(pool, arena, most):
    results = pool(2, initialized=False, HOROVOD_ARENA_BYTES=str(arena)).run(init_with_files_of, most)
    for message in results:
        assert "rank 0" in message
        assert f"HOROVOD_ARENA_BYTES, which is {arena}, and HOROVOD_STAGING_BYTES" in message
        assert "ulimit -f" in message


def test_size_of_an_arena():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory / 2 <= engine_start.arena_bytes(-1, 2) < memory / 2 + 4096
    assert engine_start.arena_bytes(0, 2) == 0
    assert engine_start.arena_bytes(4097, 2) == 8192
