"""Broadcasts of rank 0's numbers by one operation of a frontend."""

from horovod.common import frontends
from horovod.common.contract.membership import HostUpdateResult
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.common.objects import largest, numbers_of_rank_0
from tests.ranks import on_ranks


@on_ranks(3)
def test_all_ranks_get_the_numbers_of_rank_0():
    rank = frontends.TORCH.require_job().rank
    received = [numbers_of_rank_0((at + 0.1 + rank, 2.0, 3), "numbers", frontends.TORCH) for at in (0, 1e9)]
    assert received == [(0.1, 2.0, 3.0), (1e9 + 0.1, 2.0, 3.0)]


@on_ranks(3)
def test_all_ranks_get_the_maximum():
    rank = frontends.TORCH.require_job().rank
    assert [largest(value, "largest", frontends.TORCH) for value in (rank, 255 * (rank == 1), 0)] == [2, 255, 0]


def ask():
    """Return the number of operations for each query of a state, and the answers."""
    import horovod.numpy as hvd

    state, submitted = hvd.elastic.ObjectState(step=0), []
    run = frontends.NUMPY.run

    def noted(kind, name, at, into, shape, *rest):
        submitted.append((name, shape))
        return run(kind, name, at, into, shape, *rest)

    frontends.NUMPY.run = noted
    try:
        state.check_host_updates()
        if hvd.rank() == 1:
            state.on_hosts_updated(1.0, HostUpdateResult.added)
        state.commit()
        if hvd.rank() == 0:
            state.on_hosts_updated(2.0, HostUpdateResult.removed)
        try:
            state.commit()
        except HostsUpdatedInterrupt as interrupt:
            return submitted, interrupt.skip_sync, state._last_updated_timestamp
    finally:
        frontends.NUMPY.run = run
    return None


def test_checks_for_changed_hosts_send_one_byte(pool):
    byte = ("elastic.news", (1,))
    assert pool(2).run(ask) == [([byte, byte, byte, ("elastic.updates", (3,))], True, 2.0)] * 2
