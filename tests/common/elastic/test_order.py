"""Assignment of an epoch's samples to ranks."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common.elastic.order import Shares, done, mine, permutation


def test_the_order_is_the_same_everywhere():
    assert permutation(10, 0, 0) == [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]
    assert permutation(10, 3, 1) != permutation(10, 3, 2) != permutation(10, 4, 2)
    assert permutation(0, 1, 1) == []
    assert permutation(1, 1, 1) == [0]


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 1000))
def test_it_has_each_sample_once(length, seed, epoch):
    made = permutation(length, seed, epoch)
    assert sorted(made) == list(range(length))
    assert made == permutation(length, seed, epoch)


shares = st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any).map(lambda of: Shares(tuple(of)))


@given(length=st.integers(0, 60), shares=shares | st.integers(1, 9).map(Shares.equal))
def test_ranks_share_what_is_left(length, shares):
    left = list(range(100, 100 + length))
    exact = [mine(left, rank, shares, filled=False) for rank in range(len(shares.of))]
    assert sorted(sample for part in exact for sample in part) == left
    full = [mine(left, rank, shares, filled=True) for rank in range(len(shares.of))]
    rounds = -(-length // shares.round)
    for part, share in zip(full, shares.of, strict=True):
        assert (-(-len(part) // share) if share else 0) == rounds * (share > 0), "equally many rounds"
    counted = Counter(sample for part in full for sample in part)
    assert set(counted) == set(left)
    assert sum(counted.values()) - length < (len(shares.of) if shares.alike else shares.round) or not length


@settings(max_examples=100)
@given(data=st.data(), length=st.integers(0, 80), seed=st.integers(0, 99))
def test_over_any_changes_each_sample_once(data, length, seed):
    """Members change repeatedly during an epoch, and ranks are lost without notice.

    What counts as processed is the record of any one survivor.
    """
    order = permutation(length, seed, 0)
    begun, visited = 0, []
    while begun < length:
        parts = data.draw(shares | st.integers(1, 6).map(Shares.equal))
        filled = data.draw(st.booleans())
        lists = [mine(order[begun:], rank, parts, filled) for rank in range(len(parts.of))]
        rounds = data.draw(st.integers(0, -(-(length - begun) // parts.round)))
        steps = [part[: rounds * share] for part, share in zip(lists, parts.of, strict=True)]
        teller = data.draw(st.sampled_from([rank for rank, share in enumerate(parts.of) if share]))
        whole = len(steps[teller]) == len(lists[teller])
        said = done(len(steps[teller]), teller, parts, length - begun, whole)
        new = {sample for step in steps for sample in step} - set(visited)
        if filled or teller == min(rank for rank, share in enumerate(parts.of) if share):
            assert said == len(new)
            visited += new
            begun += said
    assert sorted(visited) == list(range(length))


@pytest.mark.parametrize("wrong", [(), (0, 0), (1, -1)])
def test_shares_that_are_none(wrong):
    with pytest.raises(ValueError, match="shares must be"):
        Shares(wrong)


@pytest.mark.parametrize(
    ("of", "alike"),
    [
        ((1,), True),
        ((2, 2), True),
        ((3, 2, 2), True),
        ((2, 3), False),
        ((3, 1), False),
        ((1, 0), False),
        ((0, 1), False),
    ],
)
def test_shares_are_alike_where_those_of_the_first_ranks_are_larger_by_one_at_most(of, alike):
    assert Shares(of).alike is alike
