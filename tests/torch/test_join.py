"""Ranks with different amounts of data."""

import pytest

import horovod.torch as hvd
from tests.torch.programs import Twins, assert_all_equal, batch, loss_of


def several_passes(options, calls=2):
    """Steps of several reduced backward calls: the results of earlier calls must not shrink while a rank has joined."""
    twins = Twins(**options)
    net, reference = twins.net, twins.twin
    n, me = hvd.size(), hvd.rank()
    for number in range(3 + 4 * (n - 1)):
        working = [r for r in range(n) if number < 3 + 4 * r]
        if me not in working:
            break
        twins.zero_grad()
        for i in range(calls):
            if number != 5 or me != n - 1:  # a rank without data still calls step()
                loss_of(net, batch(10 * number + i)).backward()
            for r in working:
                if number != 5 or r != n - 1:
                    (loss_of(reference, batch(10 * number + i, r)) / n).backward()
        twins.step()
    last = hvd.join()
    assert last == n - 1
    hvd.broadcast_parameters(net.state_dict(), last)
    # All ranks are back.
    reference.load_state_dict(net.state_dict())
    for number in range(3):
        twins.zero_grad()
        for i in range(calls):
            twins.backward(100 + 10 * number + i)
        twins.step()
    assert_all_equal(net)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": False}])
def test_several_backward_calls_in_a_step(pool, options):
    pool(3).run(several_passes, options)
