"""Assignment of records to ranks."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.data import order
from tests.data.sources import flat


def places(intervals):
    return [place for begin, end in intervals for place in range(begin, end)]


@given(st.sets(st.integers(0, 60)), st.integers(0, 70), st.integers(0, 70))
def test_sections(chosen, begin, end):
    intervals = order.joined((one, one + 1) for one in sorted(chosen))
    assert places(intervals) == sorted(chosen)
    assert all(first[1] < second[0] for first, second in itertools.pairwise(intervals))
    assert order.count(intervals) == len(chosen)
    assert places(order.section(intervals, begin, end)) == sorted(chosen)[begin:end]


@given(st.sets(st.integers(0, 60)), st.integers(1, 9), st.integers(0, 70))
def test_ranks_share_remaining_samples_and_know_the_finished_ones(chosen, ranks, done):
    left = order.joined((one, one + 1) for one in sorted(chosen))
    runs = [places(order.run(left, rank, ranks)) for rank in range(ranks)]
    assert flat(runs) == sorted(chosen)
    steps = order.steps(left, ranks)
    for rank, run in enumerate(runs):
        extra = order.extra(left, rank, ranks)
        assert len(run) + (extra is not None) == steps
        assert extra is None or extra in chosen
    assert sum(steps - len(run) for run in runs) < ranks
    assert places(order.rest(left, ranks, done)) == [place for run in runs for place in run[done:]]


def test_ranks_without_samples_share_those_of_others():
    left = ((5, 7),)
    assert [places(order.run(left, rank, 5)) for rank in range(5)] == [[], [], [5], [], [6]]
    assert [order.extra(left, rank, 5) for rank in range(5)] == [5, 6, None, 6, None]


@pytest.mark.parametrize(
    "left", [[[3, 2]], [[0, 11]], [[-1, 2]], [[0, 4], [4, 6]], [[0, 4], [2, 6]], [[1]], "ab", [["x", 2]]]
)
def test_invalid_intervals(left):
    with pytest.raises(ValueError, match="left must be"):
        order.checked(left, 10)
