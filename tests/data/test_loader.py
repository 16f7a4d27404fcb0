"""BaseDataLoader and AsyncDataLoaderMixin."""

import copy
import pickle
import threading

import pytest

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader


class Plain(BaseDataLoader):
    def __init__(self, batches, name="plain", error=None):
        self.batches, self.name, self.error = batches, name, error
        self.threads = set()

    def __len__(self):
        return len(self.batches)

    def _iterate(self):
        for batch in self.batches:
            self.threads.add(threading.current_thread())
            yield batch
        if self.error is not None:
            raise self.error

    def _process_batch(self, batch):
        self.processed = threading.current_thread()
        return batch * 10


class Async(AsyncDataLoaderMixin, Plain):
    pass


class NoMethods(BaseDataLoader):
    pass


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "horovod-data"]


def test_loaders_yield_their_batches():
    assert list(Plain([1, 2])) == [10, 20]
    with pytest.raises(NotImplementedError, match="NoMethods must define _iterate"):
        iter(NoMethods()).__next__()
    with pytest.raises(TypeError, match="NoMethods must define __len__"):
        len(NoMethods())


@pytest.mark.parametrize("size", [1, 3, 64])
def test_an_async_loader_yields_the_same_batches(size):
    loader = Async(size, batches=[1, 2, 3], name="mine")
    assert (loader.name, len(loader)) == ("mine", 3)
    for _ in range(3):
        assert list(loader) == [10, 20, 30]
        assert alive() == []
    assert len(loader.threads) == 3
    assert threading.current_thread() not in loader.threads
    assert loader.processed is threading.current_thread()


def test_without_a_queue_there_is_no_thread():
    loader = Async(0, batches=[1, 2])
    assert list(loader) == [10, 20]
    assert loader.threads == {threading.current_thread()}


def test_errors_follow_the_preceding_batches():
    loader = Async(batches=[1, 2], error=OSError("a bad disk"))
    for _ in range(2):
        loop = iter(loader)
        assert [next(loop), next(loop)] == [10, 20]
        with pytest.raises(OSError, match="a bad disk"):
            next(loop)
        assert list(loop) == []
    assert alive() == []


def test_close_ends_loops_and_a_new_one_may_start():
    loader = Async(1, batches=list(range(1000)))
    first, second = iter(loader), iter(loader)
    assert [next(first), next(second), next(first)] == [0, 0, 10]
    assert len(alive()) == 2
    loader.close_async_loader()
    assert alive() == []
    assert list(first) == list(second) == []
    loader.close_async_loader()
    assert len(list(loader)) == 1000


class Few(AsyncDataLoaderMixin, BaseDataLoader):
    def _iterate(self):
        return iter([1, 2, 3])


@pytest.mark.parametrize("copied", [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy])
def test_copies_have_their_own_loops(copied):
    loader = Few(1)
    loop = iter(loader)
    assert next(loop) == 1
    other = copied(loader)
    assert list(other) == [1, 2, 3]
    other.close_async_loader()
    assert list(loop) == [2, 3]


@pytest.mark.parametrize("wrong", [-1, 2.5, None, "8", True])
def test_invalid_queue_size(wrong):
    with pytest.raises(ValueError, match=rf"async_loader_queue_size must be an integer of at least 0, got {wrong!r}"):
        Async(wrong, batches=[])
