"""Groups: how unnamed ones are counted, and ranks that mean different ones."""

import time

import pytest
import torch

import horovod.torch as hvd


def unlike_sizes(name):
    """How long it takes until every rank hears of it."""
    for function in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        began = time.monotonic()
        with pytest.raises(hvd.HorovodInternalError, match=r"size of the group.* 2 on rank 0.* 3 on rank 1"):
            function([torch.ones(4)] * (2 + hvd.rank()), name=name)
        assert time.monotonic() - began < 60  # long before the stall check speaks
        assert function([torch.ones(4)] * 2, name=name, **({} if "gather" in function.__name__ else {"op": hvd.Sum}))
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["t", None])
def test_unlike_sizes_are_an_error_on_all_ranks(pool, name):
    pool(2).run(unlike_sizes, name)
