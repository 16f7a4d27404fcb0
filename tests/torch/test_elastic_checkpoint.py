"""Checkpoints of a TorchState: written by one rank, read by a job of any size."""

import pytest
import torch

import horovod.torch as hvd
from horovod.common.elastic.checkpoint_files import name_of


def trained(size: int, seed: int, **more):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    sampler = hvd.elastic.ElasticSampler(range(20))
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=seed, **more)
    for _ in range(seed):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        sampler.record_batch(_, 1)
    return state


def writes(directory):
    state = trained(2, seed=3)
    with hvd.elastic.Checkpoint(directory, keep=2) as checkpoint:
        for step in (1, 2, 3):
            checkpoint.save(step, state)
            checkpoint.wait()
            state.epoch += 1
            with torch.no_grad():
                state.model.weight.add_(1)
    return state.state_dict()


def reads(directory):
    state = trained(3, seed=0)
    found = hvd.elastic.Checkpoint(directory).load_into(state)
    assert found == (3 if hvd.rank() == 0 else None)
    seen = []

    def adapt():
        seen.append((state.epoch, state.optimizer.param_groups[0]["lr"]))
        state.optimizer.param_groups[0]["lr"] = 0.01 * hvd.size()

    state.register_reset_callbacks([adapt])
    hvd.elastic.run(lambda state: None)(state)
    assert seen == [(5, 0.001)], "once, with what was loaded"
    state.restore()
    return state.state_dict()


def test_a_job_resumes_with_another_size(pool, tmp_path):
    written = pool(2).run(writes, str(tmp_path))[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name_of(2), name_of(3)]
    for read in pool(3).run(reads, str(tmp_path)):
        torch.testing.assert_close(read["model"]["weight"], written["model"]["weight"] - 1)
        assert torch.equal(read["optimizer"]["state"][0]["exp_avg"], written["optimizer"]["state"][0]["exp_avg"])
        assert read["sampler"] == {"epoch": 0, "processed_num": 6, "seed": 0, "length": 20}
        assert read["epoch"] == 5
        assert read["optimizer"]["param_groups"][0]["lr"] == 0.03, "as the callback for three ranks says"


def test_mismatches_are_named(tmp_path):
    hvd.init()
    try:
        with hvd.elastic.Checkpoint(tmp_path) as checkpoint:
            checkpoint.save(1, trained(1, 0, other=3))
        message = "this state has no other, which what is loaded has"
        with pytest.raises(ValueError, match=message):
            checkpoint.load_into(trained(1, 0))
    finally:
        hvd.shutdown()
