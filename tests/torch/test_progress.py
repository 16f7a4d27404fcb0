"""Ranks that are in different steps detect it in their next exchange."""

import pytest

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import assert_all_equal, batch, loss_of, network, wrap


def train(net, optimizer, numbers, skips=None):
    """Train some steps. ``skips``: called with the number of a step before it is taken."""
    for number in numbers:
        optimizer.zero_grad()
        loss_of(net, batch(number)).backward()
        if skips is None or not skips(number):
            optimizer.step()


@on_ranks(2)
def test_a_rank_that_skips_a_step():
    net = network()
    optimizer = wrap(net)
    train(net, optimizer, range(3))
    before = optimizer._hvd.reducer.reductions
    local, remote = (5, 4) if hvd.rank() == 0 else (4, 5)
    match = rf"different steps: this rank has called step\(\) {local} times, another rank {remote} times"
    with pytest.raises(hvd.HorovodInternalError, match=match):
        train(net, optimizer, range(20), lambda number: hvd.rank() == 1 == number)
    assert optimizer._hvd.reducer.reductions == before + 2, "it was noticed later than in the next exchange"
    # A program may continue afterwards: all ranks restart their counts.
    hvd.broadcast_parameters(net.state_dict(), 0)
    train(net, optimizer, range(3))
    assert_all_equal(net)
