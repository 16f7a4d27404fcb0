"""Frontends of one process share one engine; each has its own names and membership."""

import os
import signal

import numpy as np
import pytest

from horovod import _core
from horovod.common import dtypes, frontends, objects
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import Sum
from tests.ranks import on_ranks


def start(face, name, array, kind=_core.KIND_ALLREDUCE):
    """Start a sum of int64 in place."""
    address = array.ctypes.data
    return face.submit(kind, name, address, address, array.shape, dtypes.INT64, Sum, 0, 1.0, 1.0, 0, None, "", 0)


def values(rank, which):
    return np.full(5, 10 * which + rank, np.int64)


@on_ranks(2, initialized=False)
def test_equal_names_do_not_meet():
    basics = {face.name: HorovodBasics(face.name) for face in (frontends.TORCH, frontends.TENSORFLOW, frontends.KERAS)}
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
    for face in (None, *table):
        assert objects.broadcast_object(f"{rank}", 1, "object", face=face) == "1"
    assert [one.rank() for one in basics.values()] == [rank] * 3


@on_ranks(2, initialized=False)
def test_each_leaves_and_enters_by_itself():
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
def test_init_after_the_job_has_ended_begins_another_for_all_faces(pool, how):
    results = pool(3, initialized=False).run(ends, how, errors=True)
    if how == "leaves":
        assert results == [(3, 3, 33)] * 3
    else:
        assert results[:2] == [(2, 1, 21)] * 2
        assert "SIGKILL" in str(results[2])


@on_ranks(2, initialized=False)
def test_what_a_second_face_asks_of_the_running_job_is_not_ignored():
    from horovod.common.process_sets import ProcessSet, add_process_set, remove_process_set

    one, two = HorovodBasics("one"), HorovodBasics("two")
    first = ProcessSet([0])
    one.init(process_sets=[first])
    for asked, message in [
        ({"comm": [0]}, r"comm is \[0\], but the job that runs for one has world ranks \[0, 1\]; .*first init"),
        ({"process_sets": "dynamic"}, r"process_sets is 'dynamic', but .* one .*static.*first init.*DYNAMIC"),
        (
            {"process_sets": [ProcessSet([0]), ProcessSet([1])]},
            r"process_sets\[1\] with ranks \[1\] .* one.*add_process",
        ),
        ({"process_sets": "static"}, "'dynamic'"),
    ]:
        with pytest.raises(ValueError, match=message):
            two.init(**asked)
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
