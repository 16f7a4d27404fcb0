"""Assignment of gradients to buckets: pure functions."""

from types import SimpleNamespace

import pytest
import torch

from horovod.torch.reducer.agreement import ALIGNMENT, Gradient, offsets, plan
from horovod.torch.reducer.buckets import Slot
from horovod.torch.reducer.rounds import Bucketing, _Proposal


def floats(*counts):
    return [Gradient(n, torch.float32) for n in counts]


def test_neighbours_in_the_order_of_arrival_share_a_bucket():
    gradients = floats(16, 16, 16, 16, 16)
    # 64 bytes each; one in the first bucket, two in each other bucket.
    assert plan(gradients, [4, 2, 0, 1, 3], first_bytes=64, max_bytes=128) == [[4], [2, 0], [1, 3]]
    assert plan(gradients, [0, 1, 2, 3, 4], first_bytes=1 << 20, max_bytes=1 << 20) == [[0, 1, 2, 3, 4]]


def test_a_bucket_has_one_dtype():
    gradients = [Gradient(8, dtype) for dtype in (torch.float32, torch.float64, torch.float64, torch.float32)]
    assert plan(gradients, [0, 1, 2, 3]) == [[0], [1, 2], [3]]


def test_every_gradient_is_in_one_bucket():
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        gradients = floats(*torch.randint(1, 3000, (20,), generator=generator).tolist())
        order = torch.randperm(20, generator=generator).tolist()
        buckets = plan(gradients, order, first_bytes=4096, max_bytes=16384)
        assert [i for bucket in buckets for i in bucket] == order
        for k, bucket in enumerate(buckets):
            _, nbytes = offsets([gradients[i] for i in bucket])
            assert len(bucket) == 1 or nbytes <= (16384 if k else 4096)


def test_offsets_are_aligned_and_disjoint():
    gradients = [Gradient(n, torch.float16) for n in (1, 31, 32, 33, 1000)]
    starts, end = offsets(gradients)
    assert starts[0] == 0
    for start, gradient, following in zip(starts, gradients, [*starts[1:], end], strict=True):
        assert start % ALIGNMENT == 0
        assert gradient.nbytes <= following - start < gradient.nbytes + ALIGNMENT


@pytest.mark.parametrize(("present", "created"), [(2, 0), (3, 1)])
def test_no_bucket_is_created_while_a_rank_is_absent(monkeypatch, present, created):
    """A joined rank would not know of the new bucket."""
    slots = [Slot(torch.nn.Parameter(torch.ones(4)), f"layer.{number}", number) for number in range(2)]
    message = torch.tensor([present, 0, 0, 2, 1])  # no other sizes, and the order in which gradients arrived
    bucketing = Bucketing(1 << 20, SimpleNamespace(ranks=(0, 1, 2)))
    bucketing._proposal = _Proposal(None, message, len(slots), [(slot, slot.shape) for slot in slots], [], None)
    monkeypatch.setattr("horovod.torch.reducer.rounds.handles.wait", lambda *_: None)
    monkeypatch.setattr("horovod.torch.reducer.rounds.Bucket", lambda name, members, *_: (name, members))
    assert bucketing.buckets == [("gradients.bucket.layer.1", slots[::-1])][:created]
