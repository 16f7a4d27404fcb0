"""Other bucket sizes and thresholds while training: all ranks switch together, and no bit of a parameter changes."""

import torch

import horovod.torch as hvd
from horovod.common.training_loop.gradients import BucketSizes
from tests.ranks import on_ranks
from tests.torch.bucketed import buckets, in_buckets, network, step, wrap

# Bucket size, largest gradient that shares a bucket, and fusion threshold; 6,400 bytes is the largest gradient.
SWITCHES = [
    (4 << 20, 1 << 10, 0),
    (2 << 10, 8 << 10, 1 << 20),
    (64 << 10, 8 << 10, 4 << 10),
    (4 << 20, 256 << 10, 1 << 20),
]


def process():
    """Return the job of this process, and its request of bucket sizes; pickled globals would be copies."""
    from horovod.common import frontends
    from horovod.common.training_loop import gradients

    return frontends.state, gradients.bucket_tuning


def train(switch):
    frontends, bucket_tuning = process()
    net = network()
    optimizer = wrap(net, gradient_as_bucket_view=None)
    shapes = []
    for number in range(40):
        if switch and number % 10 == 0 and hvd.rank() == 0:
            bucket, small, threshold = SWITCHES[number // 10]
            bucket_tuning.requested = BucketSizes(bucket, small)
            frontends.engine.retune(threshold, f"chunk_bytes={4096 << number // 10}")
        step(net, optimizer, number)
        if number % 10 == 9:
            shapes.append((len(buckets(optimizer)), len(in_buckets(optimizer))))
    return [p.detach().clone() for p in net.parameters()], shapes


@on_ranks(2, 3)
def test_switching_algorithms_keeps_results_bitwise_equal():
    frontends, bucket_tuning = process()
    try:
        usual, shapes = train(switch=False)
        assert shapes == [(1, 6)] * 4
        tuned, shapes = train(switch=True)
        assert shapes == [(1, 5), (4, 6), (1, 6), (1, 6)]
        assert all(map(torch.equal, usual, tuned))
    finally:
        bucket_tuning.requested = None
        if hvd.rank() == 0:
            frontends.engine.retune(128 << 20, frontends.engine.tuning)
