"""Which processes get SIGINT."""

import pytest

from horovod.runner.agent.ranks import ranks_of

# 10 and 20 are workers of agent 1. 10 is a shell around rank 11, which has two data loaders.
PARENTS = {1: 0, 10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20, 30: 1}


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        pytest.param({11, 20}, {11, 20}, id="nothing around a rank, no helper of it"),
        pytest.param({11}, {11, 20, 21}, id="all of a worker whose rank is not known"),
        pytest.param({1, 7}, {10, 11, 12, 13, 20, 21}, id="numbers of another pid namespace"),
    ],
)
def test_which_are_the_ranks(called, expected):
    assert set(ranks_of([10, 20], called, PARENTS)) == expected


def test_what_descends_from_no_worker():
    assert ranks_of([], {11}, PARENTS) == []
    assert ranks_of([10], {10}, {10: 11, 11: 12, 12: 11}) == [10], "a table read while processes came and went"
    assert ranks_of([9], {12}, {10: 11, 11: 12, 12: 11}) == []
