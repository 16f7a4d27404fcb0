"""The elastic state of plain arrays."""


def work():
    import numpy as np

    import horovod.numpy as hvd
    from horovod.data import StreamingDataset
    from tests.data.sources import Numbers, resumed

    stream = StreamingDataset(Numbers([10, 11, 9]), 4, seed=1)
    state = hvd.elastic.ObjectState(total=np.zeros(()), data=stream)
    return resumed(state, lambda number: hvd.allreduce(np.float64(number), name="total", op=hvd.Sum))


def test_a_stream_goes_back_with_its_state(pool):
    (first, *same), (second, *others) = pool(2).run(work)
    assert sorted(first + second) == list(range(30))
    assert same == others == [sum(range(30)), 30]
