"""save_checkpoint, load_checkpoint and Sampler: resuming with any number of ranks."""

import os
import signal

import pytest
import torch
from torch.utils.data import DataLoader

import horovod.torch as hvd
from tests.ranks import on_ranks

SAMPLES, BATCH = 26, 4


def program(sharded=False):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sampler = hvd.Sampler(range(SAMPLES), seed=3)
    if sharded:
        optimizer = hvd.ShardedOptimizer(optimizer, model.named_parameters())
    return {"model": model, "optimizer": optimizer, "sampler": sampler}


def content(objects):
    """Return the values of the model, and the optimizer's moments by position."""
    state = objects["optimizer"].state_dict()["state"]
    moments = [entry["exp_avg"].flatten().tolist() for entry in state.values()]
    return [p.flatten().tolist() for p in objects["model"].parameters()], moments


def visited(sampler, batches=None):
    """Read this rank's batches and return the visited samples."""
    samples = []
    loop = hvd.sync(DataLoader(range(SAMPLES), BATCH, sampler=sampler))
    for index, batch in enumerate(loop):
        if index == batches:
            break
        samples += [] if loop.padding else batch.tolist()
        sampler.record_batch(index, BATCH)
    return samples


def begin(path, sharded):
    torch.manual_seed(0)
    objects = program(sharded)
    objects["model"](torch.ones(1, 3)).sum().backward()
    objects["optimizer"].step()
    objects["sampler"].set_epoch(5)
    samples = visited(objects["sampler"], 2)
    hvd.save_checkpoint(path, step=7, **objects)
    return samples, content(objects)


def resume(path):
    objects = program()
    assert hvd.load_checkpoint(path, **objects) == 7
    sampler = objects["sampler"]
    assert (sampler.epoch, sampler.processed_num) == (5, 2 * 2 * BATCH)
    sampler.set_epoch(5)
    samples = visited(sampler)
    hvd.save_checkpoint(path, step=9, **objects)
    hvd.load_checkpoint(path, sampler=sampler)  # at the end of the epoch
    sampler.set_epoch(5)
    assert visited(sampler) == []
    sampler.set_epoch(6)
    hvd.barrier()
    if hvd.rank() == 0:
        os.unlink(path / "step-000000000009.ckpt")
    return samples, visited(sampler), content(objects)


@pytest.mark.parametrize("sharded", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_each_sample_is_visited_once_with_other_numbers_of_ranks(pool, tmp_path, sharded):
    first, states = zip(*pool(2).run(begin, tmp_path, sharded), strict=True)
    for ranks in (3, 1):
        rest, then, loaded = zip(*pool(ranks).run(resume, tmp_path), strict=True)
        for parts in ((*first, *rest), then):
            assert sorted(sample for part in parts for sample in part) == list(range(SAMPLES))
        assert all(one == states[0] for one in loaded)


def damage(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@on_ranks(2)
def test_errors_of_rank_0_are_raised_on_all_ranks(tmp_path):
    first = hvd.rank() == 0
    objects = {"model": torch.nn.Linear(2, 2)}
    assert hvd.load_checkpoint(tmp_path / "new", **objects) is None
    if first:
        (tmp_path / "file").touch()
    with pytest.raises(OSError if first else RuntimeError, match="Not a directory"):
        hvd.save_checkpoint(tmp_path / "file" / "below", step=1, **objects)
    bad = torch.optim.lr_scheduler.LRScheduler.__new__(torch.optim.lr_scheduler.LRScheduler)
    bad.function = damage
    with pytest.raises(ValueError if first else RuntimeError, match="state of bad must consist of tensors"):
        hvd.save_checkpoint(tmp_path / "run", step=1, bad=bad)
    with pytest.raises(ValueError, match=r"epoch must have state_dict\(\) .* got a int"):
        hvd.save_checkpoint(tmp_path / "run", step=1, epoch=1)

    for step in (1, 2, 3):
        hvd.save_checkpoint(tmp_path / "run", step=step, keep=2, **objects)
    files = sorted((tmp_path / "run").glob("*.ckpt"))
    assert [file.name for file in files] == ["step-000000000002.ckpt", "step-000000000003.ckpt"]
    with pytest.raises(ValueError, match=r"step 3 in .* got states for model, but not for scheduler"):
        hvd.load_checkpoint(tmp_path / "run", scheduler=objects["model"])
    hvd.barrier()
    if first:
        damage(files[1])
    assert hvd.load_checkpoint(tmp_path / "run", **objects) == 2
    with pytest.raises(ValueError if first else RuntimeError, match="it is torn"):
        hvd.load_checkpoint(tmp_path / "run", step=3, **objects)
    if first:
        damage(files[0])
    with pytest.raises(ValueError if first else RuntimeError, match="it is torn"):
        hvd.load_checkpoint(tmp_path / "run", **objects)


@on_ranks(2)
def test_ranks_without_the_file_get_its_content(tmp_path):
    own = tmp_path / str(hvd.rank())  # another rank has another checkpoint of this step
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(1)
    hvd.save_checkpoint(tmp_path / "1", step=1, model=model)
    with torch.no_grad():
        model.weight.fill_(2)
    hvd.save_checkpoint(own, step=1, model=model)
    with torch.no_grad():
        model.weight.fill_(0)
    assert hvd.load_checkpoint(own, model=model) == 1
    assert model.weight.eq(2).all()


def killed(path):
    from horovod.common.elastic import checkpoint_files

    model = torch.nn.Linear(9, 9)
    hvd.save_checkpoint(path, step=1, model=model)

    def half(self, data):
        self._file.write(memoryview(data).cast("B")[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint_files._Summed.write = half
    hvd.save_checkpoint(path, step=2, model=model)


def after(path):
    model = torch.nn.Linear(9, 9)
    step = hvd.load_checkpoint(path, model=model)
    hvd.save_checkpoint(path, step=2, model=model)
    return step, sorted(name for name in os.listdir(path) if name.endswith(("ckpt", "tmp")))


@pytest.mark.heavy
def test_a_job_killed_while_writing_resumes_from_the_previous_checkpoint(pool, tmp_path):
    died, lost = pool(2).run(killed, tmp_path, errors=True)
    assert type(died).__name__ == "WorkerDied"
    assert isinstance(lost, hvd.HorovodInternalError)
    assert [name[-4:] for name in sorted(os.listdir(tmp_path))] == [".tmp", "ckpt"]
    assert pool(2).run(after, tmp_path) == [(1, ["step-000000000001.ckpt", "step-000000000002.ckpt"])] * 2
