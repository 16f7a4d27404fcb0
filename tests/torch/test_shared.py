"""empty_shared: tensors in the memory that the ranks of a host share."""

import gc

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.reference import value


def stats(name):
    from horovod.common.frontends import state

    return state.engine.stats()[name]


@on_ranks(2, 3)
def test_shared_tensors():
    r, n = hvd.rank(), hvd.size()
    for shape in ((), (3,), (2, 3), (1 << 16,)):
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            t = hvd.empty_shared(*shape, dtype=dtype)
            assert (t.shape, t.dtype, t.is_contiguous()) == (torch.Size(shape), dtype, True)
            assert hvd.in_shared_memory(t)
            assert hvd.in_shared_memory(t.view(-1)[:1])
            t.copy_(value(r, dtype, shape))
            hvd.allreduce_(t, op=hvd.Sum)
            assert torch.equal(t, sum(value(i, dtype, shape) for i in range(n)))
    assert hvd.empty_shared((2, 3)).shape == (2, 3)
    assert hvd.empty_shared().dtype is torch.float32
    assert not hvd.in_shared_memory(hvd.empty_shared(0))  # uses no memory
    assert not hvd.in_shared_memory(torch.ones(3))
    assert not hvd.in_shared_memory(torch.ones(3).to_sparse())


@on_ranks(2)
def test_shared_tensors_are_not_staged():
    t = hvd.empty_shared(1 << 18)
    before = stats("unstaged_bytes")
    t.fill_(1)
    hvd.allreduce_(t, op=hvd.Sum)
    assert stats("unstaged_bytes") - before == t.nbytes
    # The result is the same if one rank's tensor is in other memory.
    other = t if hvd.rank() else torch.ones(1 << 18)
    other.fill_(1)
    hvd.allreduce_(other, op=hvd.Sum)
    assert torch.equal(other, torch.full_like(other, hvd.size()))
    assert stats("unstaged_bytes") - before == t.nbytes


@on_ranks(2)
def test_memory_is_freed():
    # The pool's ranks run other tests before.
    gc.collect()
    start = stats("arena_bytes")
    part = hvd.empty_shared(1 << 20)[:3]
    assert stats("arena_bytes") >= start + (4 << 20)  # a view keeps the memory alive
    address = part.data_ptr()
    del part
    assert stats("arena_bytes") == start
    again = hvd.empty_shared(1 << 20)
    assert again.data_ptr() == address
    assert not again.any()
    # A tensor at a freed shared address is not treated as shared.
    del again
    assert not hvd.in_shared_memory(torch.ones(8))


def without_shared_memory():
    t = hvd.empty_shared(10)
    assert not hvd.in_shared_memory(t)
    assert t.tolist() == [0.0] * 10
    t += 1
    assert hvd.allreduce_(t, op=hvd.Sum).tolist() == [float(hvd.size())] * 10


@pytest.mark.parametrize("environ", [{"HOROVOD_TRANSPORT": "tcp"}, {"HOROVOD_ARENA_BYTES": "0"}])
def test_ordinary_memory_instead(pool, environ):
    pool(2, **environ).run(without_shared_memory)


@pytest.mark.usefixtures("single")
def test_arguments():
    with pytest.raises(ValueError, match="size must be"):
        hvd.empty_shared(-1)
    with pytest.raises(ValueError, match="size must be"):
        hvd.empty_shared(2.5)
    with pytest.raises(ValueError, match="complex64"):
        hvd.empty_shared(2, dtype=torch.complex64)
    assert hvd.empty_shared(2, 2).tolist() == [[0.0, 0.0], [0.0, 0.0]]  # on a single rank
