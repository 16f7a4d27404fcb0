"""Horovod as a backend of Ray Train: datasets, checkpoints, and a restart after a failure."""

import os

import pytest

pytest.importorskip("ray.train", exc_type=ImportError)
pytest.importorskip("torch")

from horovod.ray.train import HorovodConfig, HorovodTrainer


def loop(config):
    import tempfile

    import ray.train
    import torch

    import horovod.torch as hvd

    hvd.init()
    context = ray.train.get_context()
    assert (hvd.rank(), hvd.size()) == (context.get_world_rank(), context.get_world_size())
    begin, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            begin = torch.load(f"{folder}/step.pt")["step"] + 1
    shard = ray.train.get_dataset_shard("train")
    for step in range(begin, config["steps"]):
        rows = sum(len(batch["x"]) for batch in shard.iter_torch_batches(batch_size=8))
        total = hvd.allreduce(torch.tensor([float(rows)]), op=hvd.Sum)
        if step == 2 and not checkpoint and hvd.rank() == 1:
            os.kill(os.getpid(), 9)
        metrics = {"rows": total.item(), "step": step, "begin": begin}
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"step": step}, f"{folder}/step.pt")
            saved = ray.train.Checkpoint.from_directory(folder) if hvd.rank() == 0 else None
            ray.train.report(metrics, checkpoint=saved)


@pytest.mark.heavy
def test_training_with_data_and_checkpoints_survives_a_failure(local, tmp_path):
    import ray.data
    import ray.train

    trainer = HorovodTrainer(
        loop,
        train_loop_config={"steps": 4},
        horovod_config=HorovodConfig(timeout_s=300),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        datasets={"train": ray.data.from_items([{"x": float(number)} for number in range(64)])},
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    assert result.metrics["rows"] == 64.0
    assert result.metrics["step"] == 3
    assert result.metrics["begin"] > 0  # it was killed, and resumed from its checkpoint
    assert result.checkpoint is not None


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"timeout_s must be .* got 0"):
        HorovodConfig(timeout_s=0)
    with pytest.raises(TypeError, match="horovod_config must be a HorovodConfig, got 3"):
        HorovodTrainer(loop, horovod_config=3)
    assert HorovodConfig(nics="eth0").to_dict() == {"nics": "eth0", "timeout_s": 30.0}
