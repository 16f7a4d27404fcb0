"""Tensor loaders on top of a reader of columns."""

import collections
import itertools

import pytest

pytest.importorskip("torch")
pytest.importorskip("numpy")

import numpy as np

from horovod.spark.data_loaders import pytorch_data_loaders as loaders


class Reader:
    """30 rows in batches of 7; counts its passes."""

    def __init__(self, named=False):
        self.passes, self.named = 0, named

    def __iter__(self):
        self.passes += 1
        for begin in range(0, 30, 7):
            ids = np.arange(begin, min(begin + 7, 30))
            rows = {"id": ids, "x": np.stack([ids, -ids], 1).astype("float32"), "text": ids.astype("U")}
            yield collections.namedtuple("Rows", rows)(**rows) if self.named else rows


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_rows_come_in_order_or_shuffled_each_once():
    loader = loaders.PytorchDataLoader(Reader(named=True), 8, 0)
    batches = list(loader)
    assert ids(batches) == [list(range(8)), list(range(8, 16)), list(range(16, 24)), list(range(24, 30))]
    assert batches[0]["x"].tolist()[3] == [3, -3]
    assert batches[0]["text"][3] == "3"
    for capacity in (5, 12, 100):
        shuffled = ids(loaders.PytorchDataLoader(Reader(), 8, capacity))
        assert sorted(itertools.chain(*shuffled)) == list(range(30))
        assert shuffled != ids(batches)
        assert [len(one) for one in shuffled] == [8, 8, 8, 6]


def test_epochs_may_be_shorter_and_endless_loaders_continue():
    reader = Reader()
    loader = loaders.PytorchDataLoader(reader, 8, 0, limit_step_per_epoch=2)
    assert len(loader) == 2
    assert ids(loader) == ids(loader) == [list(range(8)), list(range(8, 16))]
    endless = loaders.PytorchInfiniteDataLoader(reader, 10, 0, limit_step_per_epoch=2)
    assert [one[0] for one in ids(endless) + ids(endless)] == [0, 10, 20, 0]
    with pytest.raises(
        ValueError,
        match="limit_step_per_epoch must be the number of batches of an epoch for an infinite loader, got -1",
    ):
        loaders.PytorchInfiniteDataLoader(reader, 10, 0)
    ended = loaders.PytorchInfiniteDataLoader(iter(Reader()), 10, 0, limit_step_per_epoch=5)
    with pytest.raises(ValueError, match="reader must have rows and start over when iterated again"):
        list(ended)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (loaders.PytorchAsyncDataLoader, {"shuffling_queue_capacity": 0}),
        (loaders.PytorchInfiniteAsyncDataLoader, {"shuffling_queue_capacity": 0, "limit_step_per_epoch": 3}),
        (loaders.PytorchInmemAsyncDataLoader, {"num_epochs": 2}),
    ],
)
def test_loaders_that_read_ahead_yield_the_same(kind, arguments):
    loader = kind(async_loader_queue_size=2, reader=Reader(), batch_size=10, **arguments)
    assert ids(loader) == [list(range(10)), list(range(10, 20)), list(range(20, 30))]
    loader.close_async_loader()
