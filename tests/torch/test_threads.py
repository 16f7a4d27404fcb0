"""Backward passes in several threads of a program."""

import threading

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import assert_all_equal, assert_close, batch, loss_of, loss_of_all, network, wrap


def in_threads(*calls):
    """Run all calls concurrently; return the exceptions that they raised."""
    raised = []

    def run(call):
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.parametrize("bucketed", [None, False])
@on_ranks(2)
def test_consecutive_passes(bucketed):
    """Three threads run backward through the same network under a lock, in an order that differs between ranks."""
    net, reference = network(), network()
    optimizer = wrap(net, gradient_as_bucket_view=bucketed)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    lock = threading.Lock()

    def go_backward(step):
        loss = loss_of(net, batch(step))
        with lock:
            loss.backward()

    for step in range(8):
        optimizer.zero_grad()
        plain.zero_grad()
        assert in_threads(*[lambda step=step: go_backward(step)] * 3) == []
        (3 * loss_of_all(reference, step)).backward()
        optimizer.step()
        plain.step()
        assert_close(net, reference)
    assert_all_equal(net)


@pytest.mark.parametrize("rank", [0, 1])
@on_ranks(2)
def test_passes_at_the_same_time_are_an_error_on_all_ranks(rank):
    """On one rank, a thread runs backward through one tower while another thread does so in the other tower."""
    towers = torch.nn.ModuleList([network(3), network(4)])
    optimizer = wrap(towers, gradient_as_bucket_view=None)
    for step in range(4):  # buckets exist by then
        for tower in towers:
            loss_of(tower, batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    raised = []
    hidden, other = towers[0][:2](batch(9)), loss_of(towers[1], batch(9))
    if hvd.rank() == rank:  # called when the gradients of the last layers are complete
        hidden.register_hook(lambda _: raised.extend(in_threads(other.backward)))
    with pytest.raises(hvd.HorovodInternalError, match=f"rank {rank}"):
        towers[0][2:](hidden).square().mean().backward()
    if hvd.rank() == rank:
        assert [str(error)[:45] for error in raised] == ["backward() must not run in two threads at onc"]
