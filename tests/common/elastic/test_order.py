"""Assignment of an epoch's samples to ranks."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common.elastic.order import Shares, batch, completed, permutation, share_of_rank


def test_the_order_is_the_same_everywhere():
    assert permutation(10, 0, 0) == [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]
    assert permutation(10, 3, 1) != permutation(10, 3, 2) != permutation(10, 4, 2)
    assert permutation(0, 1, 1) == []
    assert permutation(1, 1, 1) == [0]


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 1000))
def test_permutations_contain_each_sample_once(length, seed, epoch):
    order = permutation(length, seed, epoch)
    assert sorted(order) == list(range(length))
    assert order == permutation(length, seed, epoch)


shares = st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any).map(lambda counts: Shares(tuple(counts)))


@given(length=st.integers(0, 60), shares=shares | st.integers(1, 9).map(Shares.equal))
def test_ranks_share_the_remaining_samples(length, shares):
    left = list(range(100, 100 + length))
    exact = [share_of_rank(left, rank, shares, filled=False) for rank in range(len(shares.of))]
    assert sorted(sample for part in exact for sample in part) == left
    full = [share_of_rank(left, rank, shares, filled=True) for rank in range(len(shares.of))]
    rounds = -(-length // shares.round)
    for part, share in zip(full, shares.of, strict=True):
        assert (-(-len(part) // share) if share else 0) == rounds * (share > 0), "equally many rounds"
    counted = Counter(sample for part in full for sample in part)
    assert set(counted) == set(left)
    assert sum(counted.values()) - length < (len(shares.of) if shares.alike else shares.round) or not length


@settings(max_examples=100)
@given(data=st.data(), length=st.integers(0, 80), seed=st.integers(0, 99))
def test_each_sample_once_over_any_changes(data, length, seed):
    """Members change repeatedly during an epoch, and ranks are lost without notice.

    What counts as processed is the record of any one survivor.
    """
    order = permutation(length, seed, 0)
    started, visited = 0, []
    while started < length:
        parts = data.draw(shares | st.integers(1, 6).map(Shares.equal))
        filled = data.draw(st.booleans())
        lists = [share_of_rank(order[started:], rank, parts, filled) for rank in range(len(parts.of))]
        rounds = data.draw(st.integers(0, -(-(length - started) // parts.round)))
        steps = [part[: rounds * share] for part, share in zip(lists, parts.of, strict=True)]
        reporter = data.draw(st.sampled_from([rank for rank, share in enumerate(parts.of) if share]))
        whole = len(steps[reporter]) == len(lists[reporter])
        counted = completed(len(steps[reporter]), reporter, parts, length - started, whole)
        new = {sample for step in steps for sample in step} - set(visited)
        if filled or reporter == min(rank for rank, share in enumerate(parts.of) if share):
            assert counted == len(new)
            visited += new
            started += counted
    assert sorted(visited) == list(range(length))


@pytest.mark.parametrize("wrong", [(), (0, 0), (1, -1)])
def test_invalid_shares(wrong):
    with pytest.raises(ValueError, match="shares must be"):
        Shares(wrong)


@pytest.mark.parametrize(
    ("counts", "alike"),
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
def test_shares_are_equal_except_for_one_more_on_first_ranks(counts, alike):
    assert Shares(counts).alike is alike


# Batch sizes when the number of ranks changes.


def test_a_batch_that_divides():
    one = batch(256, 4, 3)
    assert (one.local, one.accumulation, one.size, one.scale(one.size)) == (64, 1, 64, 1.0)
    two = batch(256, 2, 0, most=64)
    assert (two.local, two.accumulation, two.size, two.scale(two.size)) == (128, 2, 64, 0.5)


@given(st.integers(1, 300), st.integers(1, 20), st.none() | st.integers(1, 50), st.data())
def test_averaging_stays_correct(global_batch, ranks, most, data):
    """The average over ranks of summed and scaled gradients is the mean over the samples."""
    if global_batch < ranks:
        with pytest.raises(
            ValueError, match=f"global_batch must have .* for each of {ranks} ranks, got {global_batch}"
        ):
            batch(global_batch, ranks, 0, most)
        return
    if most is not None and global_batch % ranks and -(-global_batch // ranks) > most * (global_batch // ranks):
        with pytest.raises(ValueError, match="a multiple of the ranks can"):
            batch(global_batch, ranks, 0, most)
        return
    parts = [batch(global_batch, ranks, rank, most) for rank in range(ranks)]
    assert sum(part.local for part in parts) == global_batch
    assert len({part.accumulation for part in parts}) == 1, "ranks reduce equally often"
    values = iter([float(data.draw(st.integers(-9, 9))) for _ in range(global_batch)])
    total, averaged = 0.0, 0.0
    for part in parts:
        assert sum(part.sizes) == part.local
        assert min(part.sizes) >= 1
        assert most is None or max(part.sizes) <= most
        for size in part.sizes:
            samples = [next(values) for _ in range(size)]
            total += sum(samples)
            averaged += part.scale(size) * (sum(samples) / size) / ranks
    assert averaged == pytest.approx(total / global_batch, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0), "global_batch must be .*, got 0"),
        ((2.0, 1, 0), "global_batch must be .*, got 2.0"),
        ((8, 2, 2), "rank must be from 0 to 1, got 2"),
        ((8, 2, 0, 0), "most must be .*, got 0"),
        ((7, 3, 0, 1), "cannot be cut into equally many passes of at most 1 samples on all of them"),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        batch(*arguments)


def test_part_of_a_rank_for_a_frontend():
    import horovod.numpy as hvd

    assert hvd.elastic.batch.__name__ == "batch"
    with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
        hvd.elastic.batch(256)
