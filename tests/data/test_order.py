"""The order of records."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from horovod.data.order import Order
from tests.data.sources import flat

lengths = st.lists(st.integers(0, 9), max_size=12)


def chains_of(blocks, data):
    """Return chains with so many blocks in total, or none."""
    ends = data.draw(st.sets(st.integers(1, blocks - 1))) if blocks > 1 else set()
    edges = [0, *sorted(ends), blocks]
    return data.draw(st.sampled_from([[], [end - begin for begin, end in itertools.pairwise(edges) if end > begin]]))


def records(order, begin, end):
    return [(block, place) for _, block, places in order.pieces(begin, end) for place in places]


@given(lengths, st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 2**33), st.integers(1, 5), st.data())
def test_each_record_has_a_position(lengths, shuffle, seed, epoch, mix, data):
    chains = chains_of(len(lengths), data)
    order = Order(lengths, shuffle, seed, epoch, mix, chains)
    whole = [(block, place) for block, length in enumerate(lengths) for place in range(length)]
    assert len(order) == len(whole)
    begins = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=4)) | {0, len(whole)})
    cut = [records(order, begin, end) for begin, end in itertools.pairwise(begins)]
    assert sorted(flat(cut)) == whole
    if not shuffle:
        assert flat(cut) == whole
    windows = [window for window, _, _ in order.pieces(0, len(whole))]
    assert windows == sorted(windows), "a window is read once"
    blocks = flat(order.window(number) for number in range(-(-len(lengths) // mix)))
    for count, end in zip(chains, itertools.accumulate(chains), strict=True):
        begin = blocks.index(end - count)
        assert blocks[begin : begin + count] == list(range(end - count, end)), "a chain stays as it is"


def test_the_order_is_the_same_everywhere():
    order = Order([3, 4, 3], True, 5, 1, 2)
    assert [one[:2] for one in order.pieces(0, 10)] == [(0, 1), (0, 0), (1, 2)]
    assert [places for _, _, places in order.pieces(0, 10)] == [[2, 0, 1, 3], [1, 0, 2], [2, 0, 1]]


def test_epoch_and_seed_change_the_order():
    orders = {
        str(records(Order([20, 20], True, *numbers, 1), 0, 40)) for numbers in [(0, 0), (0, 1), (1, 0), (1 << 32, 0)]
    }
    assert len(orders) == 4
