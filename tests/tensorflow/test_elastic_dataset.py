"""ElasticDataset over a tf.data.Dataset."""

import collections
import random

import numpy as np
import pytest
import tensorflow as tf

from horovod.common.elastic.dataset import ElasticDataset


def dataset(source, batch_size=None, rank=0, size=1, **more):
    class OneRank(ElasticDataset):
        _place_of = (lambda: rank), (lambda: size)

    return OneRank(source, batch_size, **more)


def samples(length):
    """Return datasets other than NumPy arrays: sequential, structured, and of unknown length."""
    numbers = tf.data.Dataset.range(2 * length).filter(lambda number: number % 2 == 0)
    return numbers.map(lambda number: (number // 2, {"squared": number * number}))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(3, 12))])
def test_each_sample_is_visited_once_when_ranks_change(seed):
    draw = random.Random(seed)
    length, shuffle = draw.randrange(0, 30), draw.choice([False, True, 5])
    source = samples(length)
    sizes = {"batch_size": draw.randrange(1, 5)} if draw.random() < 0.5 else {"global_batch": draw.randrange(4, 9)}
    changes = [(draw.randrange(1, 5), draw.randrange(4)) for _ in range(draw.randrange(4))] + [(2, 10**6)]
    visits, saved = collections.Counter(), None
    for size, steps in changes:
        every = [dataset(source, rank=rank, size=size, shuffle=shuffle, seed=seed, **sizes) for rank in range(size)]
        for rank, one in enumerate(every):
            tf.random.set_seed(rank)  # orders must not depend on it
            if saved is not None:
                one.load_state_dict(saved)
            for number, (numbers, more) in enumerate(one):
                if number == steps:
                    break
                assert (more["squared"].numpy() == 4 * numbers.numpy() ** 2).all()
                visits.update(numbers.numpy().tolist())
                one.record()
        (saved,) = {tuple(one.state_dict().items()) for one in every}
        saved = dict(saved)
        assert saved["processed_num"] <= sum(visits.values())
    assert sorted(visits) == list(range(length))
    assert saved["processed_num"] == length
    assert sum(visits.values()) - length < max(size for size, _ in changes)


def test_orders_follow_from_seed_and_epoch():
    def order(data):
        return [number for numbers, _ in data for number in numbers.numpy().tolist()]

    data = dataset(samples(20), 4, seed=3)
    first = order(data)
    assert (sorted(first), len(data)) == (list(range(20)), 5)
    assert first != list(range(20))
    assert order(data) == order(dataset(samples(20), 4, seed=3)) == first
    assert order(dataset(samples(20), 4, seed=4)) != first
    data.set_epoch(1)
    assert order(data) != first
    assert order(dataset(samples(20), 4, shuffle=False)) == list(range(20))


def test_prepare_runs_only_on_own_samples():
    prepared = []

    def prepare(samples):
        prepared.append(sorted(number.numpy() for number in samples))
        return samples.map(lambda number: number + 100)

    data = dataset(tf.data.Dataset.range(10), 3, rank=1, size=2, shuffle=False, prepare=prepare)
    assert [numbers.numpy().tolist() for numbers in data] == [[101, 103, 105], [107, 109]]
    assert prepared == [[1, 3, 5, 7, 9]]


def test_mismatched_arguments():
    with pytest.raises(ValueError, match=r"a tf\.data\.Dataset of one epoch, got one without an end"):
        dataset(tf.data.Dataset.range(3).repeat(), 2)
    with pytest.raises(ValueError, match=r"prepare must be None unless source is a tf\.data\.Dataset, got a ndarray"):
        dataset(np.arange(3), 2, prepare=lambda samples: samples)
