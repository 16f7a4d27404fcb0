"""A stream across membership changes."""

import bisect
import collections
import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.common.elastic import ObjectState
from horovod.data import StreamingDataset
from tests.data.sources import Numbers, flat
from tests.data.test_order import chains_of

lengths = st.lists(st.integers(0, 12), max_size=8)
ranks, batches = st.integers(1, 6), st.integers(1, 5)


def make(lengths, batch, rank=0, size=1, chains=(), **more):
    source = Numbers(lengths)
    source.chains = chains
    return StreamingDataset(source, batch, rank=lambda: rank, size=lambda: size, **more)


@given(lengths, batches, st.integers(1, 3), st.booleans(), st.lists(st.tuples(ranks, st.integers(0, 6)), max_size=5))
def test_each_record_is_visited_once_when_ranks_change(lengths, batch, mix, shuffle, changes):
    visits, saved = collections.Counter(), None
    for size, steps in [*changes, (3, 10**6)]:
        every = [make(lengths, batch, rank, size, shuffle=shuffle, seed=4, mix=mix) for rank in range(size)]
        for one in every:
            if saved is not None:
                one.load_state_dict(saved)
        expected = [len(one) for one in every]
        assert len(set(expected)) == 1, "equally many steps"
        seen = 0
        for number, together in enumerate(zip(*every, strict=True)):
            if number == steps:
                break
            for one, got in zip(every, together, strict=True):
                assert 0 < len(got) <= batch
                visits.update(got)
                one.record()
            seen += 1
        assert {len(one) for one in every} == {expected[0] - seen}
        states = [one.state_dict() for one in every]
        assert states == [states[0]] * size
        saved = pickle.loads(pickle.dumps(states[0]))
    assert sorted(visits) == list(range(sum(lengths)))
    assert saved["left"] == []
    assert sum(visits.values()) - sum(lengths) < max([3, *(size for size, _ in changes)])


@given(lengths, batches, st.integers(1, 4), st.booleans(), ranks, st.data())
def test_blocks_of_a_chain_are_loaded_in_order(lengths, batch, mix, shuffle, size, data):
    chains = chains_of(len(lengths), data)
    firsts = [end - count for count, end in zip(chains, itertools.accumulate(chains), strict=True)]
    visits = collections.Counter()
    for rank in range(size):
        stream = make(lengths, batch, rank, size, shuffle=shuffle, seed=4, mix=mix, chains=chains)
        visits.update(flat(stream))
        read = stream.source.read
        # The stream can go back only because a rank may visit one record a second time.
        last = len(read) - (len(set(read)) < len(read))
        owners = [bisect.bisect_right(firsts, block) for block in read[:last]]
        for chain in set(owners) if chains else ():
            own = [block for block, its in zip(read, owners, strict=False) if its == chain]
            assert own == sorted(set(own))
    assert sorted(visits) == list(range(sum(lengths)))


@given(lengths, batches, st.integers(1, 3), st.integers(1, 4), st.integers(0, 3))
def test_workers_of_a_rank_share_its_batches_in_turn(lengths, batch, mix, workers, done):
    stream = make(lengths, batch, 1, 2, mix=mix)
    for _ in range(done):
        stream.record()
    every = [list(stream.batches(worker, workers)) for worker in range(workers)]
    turns = [every[number % workers][number // workers] for number in range(len(stream))]
    assert turns == list(stream)
    assert sum(map(len, every)) == len(stream)


@pytest.mark.parametrize("mix", [1, 4])
def test_a_rank_reads_little_more_than_its_part(mix):
    read = []
    for rank in range(4):
        stream = make([10] * 64, 7, rank, 4, mix=mix)
        assert sum(len(one) for one in stream) == 160
        assert len(set(stream.source.read)) == len(stream.source.read), "each block once"
        read += stream.source.read
    assert len(set(read)) == 64
    assert len(read) <= 64 + 3 * mix


def test_invalid_arguments_are_refused():
    stream = make([3, 4], 2)
    for name in ("batch_size", "mix"):
        for wrong in (0, -1, 2.0, True, None):
            with pytest.raises(ValueError, match=rf"{name} must be an integer of at least 1, got {wrong!r}"):
                StreamingDataset(stream.source, **{"batch_size": 2, "mix": 1, name: wrong}, rank=int, size=lambda: 1)
    with pytest.raises(ValueError, match=r"seed must be .*, got -1"):
        make([3], 2, seed=-1)
    with pytest.raises(ValueError, match="worker must be an integer below workers, 2, got 2"):
        stream.batches(2, 2)
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        StreamingDataset(stream.source, 2)
    for other, name in ((make([3, 5], 2), "length"), (make([4, 3], 2), "source"), (make([3, 4], 2, seed=1), "seed")):
        with pytest.raises(ValueError, match=f"state_dict must be of a stream with {name} "):
            other.load_state_dict(stream.state_dict())
    make([3, 4], 3).load_state_dict(stream.state_dict())  # other batch sizes are accepted


def test_the_next_epoch_starts_after_the_last():
    stream = make([5, 5], 4, seed=3)
    orders = []
    for epoch in range(2):
        assert stream.epoch == epoch
        orders.append(flat(stream))
        for _ in range(3):
            stream.on_batch_end()
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(10))
    assert orders[0] != orders[1]


def test_states_restore_the_position():
    stream = make([10], 4)
    state = ObjectState(lambda obj, root_rank=0: obj, lambda: 0, data=stream, step=0)
    stream.record()
    state.save()
    stream.record()
    state.restore()
    assert state.data is stream
    assert (stream.processed_num, len(stream)) == (4, 2)
    stream.record()
    state.sync()
    state.on_reset()
    assert (state.data is stream, stream.processed_num) == (True, 8)


def of_a_rank(lengths):
    stream = StreamingDataset(Numbers(lengths), 4)
    got = [flat(stream)]
    for _ in range(2):
        stream.record()
    try:
        stream.load_state_dict({**stream.state_dict(), "seed": 9})
    except ValueError as error:
        return got[0], stream.state_dict(), str(error)


def test_ranks_of_a_job_get_their_own_parts(pool):
    results = pool(3).run(of_a_rank, [10, 11, 9])
    assert sorted(flat(got for got, _, _ in results)) == list(range(30))
    assert {str(state) for _, state, _ in results} == {str(results[0][1])}
    assert results[0][1]["left"] == [[8, 10], [18, 20], [28, 30]]
    assert [error for _, _, error in results] == [
        f"state_dict must be of a stream with seed 0, got 9 (rank {rank})" for rank in range(3)
    ]
