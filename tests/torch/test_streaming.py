"""Streams in PyTorch programs."""

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
    saved = stream.state_dict()
    return here, saved, seen, flat(stream)


def test_states_restore_streams(pool):
    results = pool(2).run(train)
    assert [here for here, *_ in results] == [24, 24]
    assert results[0][1] == results[1][1]
    assert results[0][1]["left"] == [[12, 30], [42, 60]]
    assert sorted(flat([*seen, *rest] for _, _, seen, rest in results)) == list(range(60))
