"""Ranks in messages."""

import pytest

from horovod.common.contract.reasons import named_ranks, rank_ranges, runs


@pytest.mark.parametrize(
    ("ranks", "text"), [([5], "5"), ([1, 0], "0-1"), ([3, 0, 1, 2, 7, 9, 8], "0-3,7-9"), ([0, 2, 4], "0,2,4")]
)
def test_ranges(ranks, text):
    assert rank_ranges(ranks) == text
    assert rank_ranges(ranks, ", ") == text.replace(",", ", ")


def test_runs():
    assert runs([3, 0, 1, 2, 7]) == [(0, 3), (7, 7)]
    assert runs([]) == []


def test_named_ranks():
    assert named_ranks([5]) == "rank 5"
    assert named_ranks([5, 0, 1]) == "ranks 0-1, 5"
    assert named_ranks([5, 0, 1], ",") == "ranks 0-1,5"
