"""Streams in PyTorch programs."""

from types import SimpleNamespace

import torch

import horovod.torch as hvd
from horovod.data import StreamingDataset
from tests.data.sources import Numbers, flat


def train():
    stream = StreamingDataset(Numbers([20, 30, 10]), 4, mix=2, seed=7)
    model = torch.nn.Linear(1, 1)
    state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), data=stream)
    state.sync()
    seen = []
    for number, batch in enumerate(stream):
        if number == 3:
            break
        seen += batch
        stream.record()
        state.commit()
    stream.record()
    state.restore()
    here = stream.processed_num
    stream.record(2 * hvd.rank())  # as if one rank were ahead: all ranks get the union of their records
    state.sync()
    told = stream.state_dict()
    return here, told, seen, flat(stream)


def test_a_state_keeps_a_stream(pool):
    results = pool(2).run(train)
    assert [here for here, *_ in results] == [24, 24]
    assert results[0][1] == results[1][1]
    assert results[0][1]["left"] == [[12, 30], [42, 60]]
    assert sorted(flat([*seen, *rest] for _, _, seen, rest in results)) == list(range(60))


def test_waits_of_loaders_count_also_after_those_of_streams(monkeypatch):
    from torch.utils.data import dataloader

    from horovod.common.steps import marks
    from horovod.torch import monitoring

    monkeypatch.setattr(marks, "data_seen", True)
    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__next__", lambda self: 3)
    monitoring.watch_data_loaders()
    watched = dataloader._BaseDataLoaderIter.__next__
    iterator = SimpleNamespace()
    assert watched(iterator) == 3
    assert watched.__wrapped__(iterator) == 3
    monitoring.watch_data_loaders()
    assert dataloader._BaseDataLoaderIter.__next__ is watched, "once"
