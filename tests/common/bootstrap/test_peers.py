"""The topology of a job: nodes, parents, local and cross ranks."""

import pytest

from horovod.common.bootstrap.peers import check_agreement, make_plan
from tests.common.bootstrap.meshes import make_peer as peer


def test_one_host():
    peers = [peer(rank) for rank in range(3)]
    plan = make_plan(2, peers)
    assert (plan.node_of, plan.local, plan.parent, plan.remote) == ([0, 0, 0], [0, 1, 2], 0, [])
    assert make_plan(0, peers).parent == -1
    assert make_plan(0, peers).local_children == [1, 2]
    assert make_plan(0, peers).remote_children == []
    assert plan.local_children == []


def test_ranks_alternating_between_two_hosts():
    peers = [peer(0, "a"), peer(1, "b"), peer(2, "a"), peer(3, "b")]
    plans = [make_plan(rank, peers) for rank in range(4)]
    assert plans[0].node_of == [0, 1, 0, 1]
    assert [plan.parent for plan in plans] == [-1, 0, 0, 1]
    assert [plan.local_children for plan in plans] == [[2], [3], [], []]
    assert plans[0].remote_children == [1]
    assert plans[3].remote == [0, 2]
    # A child's parent lists it as a child.
    for child, plan in enumerate(plans):
        if plan.parent >= 0:
            above = plans[plan.parent]
            assert child in above.local_children + above.remote_children


def test_process_sets_are_compared():
    assert check_agreement([peer(0, sets=[[0, 1]]), peer(1, sets=[[0, 1]])]) == (((0, 1),),)
    with pytest.raises(ValueError, match=r"process_sets\[0\] has ranks \[0\] on rank 0 .* but \[1\] on rank 1"):
        check_agreement([peer(0, sets=[[0]]), peer(1, sets=[[1]])])
    with pytest.raises(ValueError, match=r"rank 0 .* gave init 1 process sets, rank 1 .* 0"):
        check_agreement([peer(0, sets=[[0]]), peer(1)])
    with pytest.raises(ValueError, match=r"static on rank 0 .* dynamic on rank 1"):
        check_agreement([peer(0), peer(1, dynamic=True)])
