"""A data stream in the worker processes of PyTorch's DataLoader."""

import pytest

pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from horovod.data import StreamingDataset
from tests.data.sources import Numbers, flat


class Shared(IterableDataset):
    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        worker = get_worker_info()
        return self.stream.batches(worker.id, worker.num_workers)


def two_epochs(start):
    """Return the batches of a rank's DataLoader in two epochs, and those of its stream."""
    from tests.torch import test_data  # by its importable name, which the worker processes know

    stream = StreamingDataset(Numbers([10, 11, 9]), 4)
    loader = DataLoader(test_data.Shared(stream), batch_size=None, num_workers=2, multiprocessing_context=start)
    got, expected = [], []
    for epoch in range(2):
        stream.set_epoch(epoch)
        expected += list(stream)  # its order was fixed by then
        got += list(loader)
    return got, expected


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.heavy)])
def test_processes_of_a_loader_share_the_part_of_their_rank(pool, start):
    results = pool(2).run(two_epochs, start)
    for got, expected in results:
        assert got == expected
        assert len(got) == 8
    assert sorted(flat(flat(got) for got, _ in results)) == sorted([*range(30)] * 2)
