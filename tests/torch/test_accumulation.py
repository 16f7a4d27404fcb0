"""Backward passes that sum up locally, and what becomes of them when gradients are zeroed in between."""

import pytest
import torch

import horovod.torch as hvd
from tests.torch.test_backward import assert_all_equal, assert_close, batch, everybody, loss_of, network, wrap


def dropped(options):
    """One pass of two, then zero_grad(): the next two belong together, and nothing from before comes back."""
    net, reference = network(), network()
    optimizer = wrap(net, backward_passes_per_step=2, **options)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    factor = hvd.size() if options.get("op") == hvd.Sum else 1
    for number in range(6):
        if number % 2:
            # What the last step has left is still there, and is put aside where results are added to it.
            loss_of(net, batch(number)).backward()
        optimizer.zero_grad(set_to_none=number % 3 == 0)
        plain.zero_grad()
        for i in range(2):
            loss_of(net, batch(10 + number + i)).backward()
            (everybody(reference, 10 + number + i) * factor).backward()
        for n in (net, reference):
            torch.nn.utils.clip_grad_norm_(n.parameters(), 0.05)
        assert_close(net, reference)
        optimizer.step()
        plain.step()
    assert_all_equal(net)


@pytest.mark.parametrize("options", [{}, {"op": hvd.Sum}, {"op": hvd.Sum, "gradient_as_bucket_view": True}])
def test_passes_that_are_thrown_away(pool, options):
    pool(2).run(dropped, options)


def discriminator():
    net = network()
    optimizer = wrap(net, op=hvd.Adasum)
    for number in range(3):
        optimizer.zero_grad()
        loss_of(net, batch(number)).backward()
        optimizer.step()
        loss_of(net, batch(number)).backward()  # the generator's
    assert_all_equal(net)


def test_passes_that_are_thrown_away_with_adasum(pool):
    pool(2).run(discriminator)
