"""Loops over data of which ranks have different numbers of batches, without an optimizer."""

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.ranks import on_ranks

COUNTS = (3, 1, 0)


def loop(policy):
    """Return (weight, padding) of each iteration, and the loop."""
    rows = 1 + hvd.rank()
    batches = hvd.sync((np.full((rows, 2), k) for k in range(COUNTS[hvd.rank()])), policy)
    return [(batches.weight, batches.padding) for _ in batches], batches


@on_ranks(3)
def test_policies():
    rank = hvd.rank()
    seen, batches = loop("pad")
    # Rank 2 has no batch, so it gets one of rank 0.
    assert seen == [[(1, False)] * 3, [(2, False), (0, True), (0, True)], [(0, True)] * 3][rank]
    assert batches.last_rank is None
    seen, batches = loop("join")
    assert seen == [(1 + rank, False)] * COUNTS[rank]
    assert batches.last_rank == 0
    if rank == 2:
        seen, batches = loop("stop")
    else:
        with pytest.warns(UserWarning, match=f"after 0 batches: rank 2 has no more, batches of rank {rank}"):
            seen, batches = loop("stop")
    assert seen == []
    assert batches.remaining == (0 if rank == 2 else None)
    assert [len(list(hvd.sync([], policy))) for policy in ("pad", "join", "stop")] == [0, 0, 0]
