"""Batch sizes when the number of ranks changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.common.elastic.batch import batch


def test_a_batch_that_divides():
    one = batch(256, 4, 3)
    assert (one.local, one.accumulation, one.size, one.scale(one.size)) == (64, 1, 64, 1.0)
    two = batch(256, 2, 0, most=64)
    assert (two.local, two.accumulation, two.size, two.scale(two.size)) == (128, 2, 64, 0.5)


@given(st.integers(1, 300), st.integers(1, 20), st.none() | st.integers(1, 50), st.data())
def test_averaging_stays_right(global_batch, ranks, most, data):
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
            drawn = [next(values) for _ in range(size)]
            total += sum(drawn)
            averaged += part.scale(size) * (sum(drawn) / size) / ranks
    assert averaged == pytest.approx(total / global_batch, abs=1e-9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0, 1, 0), "global_batch must be .*, got 0"),
        ((2.0, 1, 0), "global_batch must be .*, got 2.0"),
        ((8, 2, 2), "rank must be from 0 to 1, got 2"),
        ((8, 2, 0, 0), "most must be .*, got 0"),
        ((7, 3, 0, 1), "cannot be cut into equally many passes of at most 1 samples on all of them"),
    ],
)
def test_invalid_arguments(given, said):
    with pytest.raises(ValueError, match=said):
        batch(*given)


def test_a_face_asks_for_its_part():
    import horovod.numpy as hvd

    assert hvd.elastic.batch.__name__ == "batch"
    with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
        hvd.elastic.batch(256)
