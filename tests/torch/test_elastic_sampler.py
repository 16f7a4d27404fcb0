"""ElasticSampler: each sample once in an epoch, even if the ranks change."""

from unittest import mock

import pytest
import torch

from horovod.torch.elastic import ElasticSampler

MODULE = "horovod.torch.elastic.sampler"


def job_of(rank: int, size: int):
    return mock.patch.multiple(MODULE, rank=lambda: rank, size=lambda: size)


def test_loaders_resume_at_their_position():
    with job_of(0, 2):
        sampler = ElasticSampler(range(8), shuffle=False)
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, sampler=sampler)
    assert [part.tolist() for part in loader] == [[0, 2], [4, 6]]
    sampler.record_batch(0, 2)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4, "seed": 0, "length": 8}
    assert len(sampler) == 4, "until it is reset"
    with job_of(0, 1):
        sampler.reset()
    assert (sampler.rank, sampler.num_replicas, len(sampler)) == (0, 1, 4)
    assert [part.tolist() for part in loader] == [[4, 5], [6, 7]]
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    assert sampler.processed_indices == list(range(8))
    with job_of(0, 1):
        sampler.reset()
        assert (list(sampler), len(sampler)) == ([], 0), "nothing is left, and nothing is wrong"
        sampler.set_epoch(1)
    assert (sampler.epoch, len(sampler), sampler.processed_num) == (1, 8, 0)


def test_a_running_epoch_keeps_finished_samples():
    """Also for programs that call set_epoch at its beginning, and again in the middle."""
    with job_of(0, 2):
        sampler = ElasticSampler(range(8), shuffle=False)
        sampler.set_epoch(1)
        sampler.record_batch(0, 2)
        sampler.set_epoch(1)
        assert (list(sampler), sampler.processed_num) == ([4, 6], 4)
    with job_of(0, 1):
        sampler.reset()
        sampler.set_epoch(1)
        assert (list(sampler), sampler.processed_num) == ([4, 5, 6, 7], 4)
        sampler.record_batch(0, 4)
        sampler.set_epoch(1)
        assert (len(sampler), sampler.processed_num) == (8, 0), "all of it was done, so it begins anew"
        sampler.record_batch(0, 4)
        sampler.set_epoch(2)
        assert (len(sampler), sampler.processed_num) == (8, 0)
        sampler.record_batch(0, 4)
        sampler.dataset = range(9)
        sampler.set_epoch(2)
        assert (len(sampler), sampler.processed_num) == (9, 0), "of another dataset nothing is done"


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loop_continues_after_records_are_undone(shuffle):
    """As after ``state.restore()`` in the middle of a loop: batch numbers are those of the loop."""
    for rank in (0, 1):
        with job_of(rank, 2):
            sampler = ElasticSampler(range(24), shuffle=shuffle)
            sampler.record_batch(0, 2)  # an earlier loop
            before = sampler.state_dict()
            sampler.load_state_dict(before)
            loop = enumerate(torch.utils.data.DataLoader(torch.arange(24), batch_size=2, sampler=sampler))
            states = []
            for index in (0, 1, 2):
                assert next(loop)[0] == index
                sampler.record_batch(index, 2)
                states.append(sampler.state_dict())
            saved = states[0]
            assert sampler.processed_num == 16
            sampler.load_state_dict(saved)
            assert sampler.processed_num == 8
            sampler.record_batch(next(loop)[0], 2)
            assert sampler.processed_num == 20, "four batches of this loop, and one of the loop before it"
            sampler.load_state_dict(before)
            assert sampler.processed_num == 4
            sampler.record_batch(next(loop)[0], 2)
            assert sampler.processed_num == 24
            # A loop that restarts counts from there.
            sampler.load_state_dict(saved)
            sampler.record_batch(0, 2)
            assert sampler.processed_num == 12
            sampler.load_state_dict(saved)
            for index, _ in enumerate(torch.utils.data.DataLoader(torch.arange(24), batch_size=2, sampler=sampler)):
                sampler.record_batch(index, 2)
            assert sampler.processed_num == 24
