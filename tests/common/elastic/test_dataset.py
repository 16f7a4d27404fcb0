"""An epoch across membership changes, and batches of arrays."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.common.elastic import ObjectState
from horovod.common.elastic.dataset import ElasticDataset

lengths, ranks, batches = st.integers(0, 40), st.integers(1, 5), st.integers(1, 4)


def dataset(source, batch=None, rank=0, size=1, **more):
    class OneRank(ElasticDataset):
        _place_of = (lambda: rank), (lambda: size)

    return OneRank(source, batch, **more)


@given(
    lengths,
    batches,
    st.none() | st.integers(5, 12),
    st.integers(0, 9),
    st.booleans(),
    st.lists(st.tuples(ranks, st.integers(0, 6)), min_size=1, max_size=5),
)
def test_each_sample_is_visited_once_when_ranks_change(length, batch, whole, seed, shuffle, changes):
    visits, saved, size = collections.Counter(), None, 1
    for size, steps in [*changes, (changes[-1][0], 10**6)]:
        sizes = {"batch": batch} if whole is None else {"global_batch": whole}
        every = [dataset(length, rank=rank, size=size, shuffle=shuffle, seed=seed, **sizes) for rank in range(size)]
        for one in every:
            if saved is not None:
                one.load_state_dict(saved)
        assert len({len(one) for one in every}) == 1, "equally many steps"
        for number, together in enumerate(zip(*every, strict=True)):
            if number == steps:
                break
            assert all(len(got) for got in together), "a part of each step for all"
            if whole is not None and len(every[0]) > 1:
                assert sum(map(len, together)) == whole, "the global batch, but for an epoch's last one"
            for one, got in zip(every, together, strict=True):
                visits.update(got.tolist())
                one.record()
        assert len({str(one.state_dict()) for one in every}) == 1
        saved = every[0].state_dict()
    assert sorted(visits) == list(range(length))
    assert saved["processed_num"] == length
    assert sum(visits.values()) - length < max(size for size, _ in changes)


def test_batches_of_arrays_and_invalid_arguments():
    x, y = np.arange(10) * 10, {"a": np.arange(10), "b": [np.arange(20).reshape(10, 2)]}
    data = dataset((x, y), 4, shuffle=False)
    got = list(data)
    assert [len(one[0]) for one in got] == [4, 4, 2]
    assert got[1][0].tolist() == [40, 50, 60, 70]
    assert got[2][1]["b"][0].tolist() == [[16, 17], [18, 19]]
    assert len(data) == 3, "nothing is recorded"
    sample = collections.namedtuple("Sample", "x y")
    assert [one.x.tolist() for one in dataset(sample(x, x), 4, shuffle=False)] == [one[0].tolist() for one in got]
    with pytest.raises(ValueError, match=r"equal numbers of samples, got \[10, 11\]"):
        dataset((x, np.arange(11)), 4)
    with pytest.raises(ValueError, match=r"batch_size must be .*, got 0"):
        dataset(x, 0)
    with pytest.raises(ValueError, match="one of batch_size and global_batch must be an integer, got 4 and 8"):
        dataset(x, 4, global_batch=8)
    with pytest.raises(ValueError, match=r"global_batch must have .* for each of 3 ranks, got 2"):
        dataset(x, global_batch=2, size=3)
    with pytest.raises(ValueError, match="has length 9, this dataset 10"):
        data.load_state_dict({**data.state_dict(), "length": 9})


def test_a_running_epoch_keeps_finished_samples():
    data = dataset(10, 4, shuffle=False)
    data.record()
    data.set_epoch(0)
    assert [one.tolist() for one in data] == [[4, 5, 6, 7], [8, 9]]
    data.record(6)
    data.set_epoch(0)
    assert (len(data), data.processed_num) == (3, 0), "all of it was done, so it begins anew"
    data.record()
    data.set_epoch(1)
    assert (len(data), data.processed_num) == (3, 0)


def test_states_store_the_position_and_not_the_samples():
    data = dataset(10, 4)
    state = ObjectState(lambda obj, root_rank=0: obj, lambda: 0, data=data, step=0)
    data.record()
    state.save()
    data.record()
    state.restore()
    assert state.data is data
    assert (data.processed_num, len(data)) == (4, 2)
    assert state._saved_state["data"] == {"epoch": 0, "processed_num": 4, "seed": 0, "length": 10}
    data.record()
    state.sync()
    state.on_reset()
    assert (state.data is data, data.processed_num) == (True, 8)
