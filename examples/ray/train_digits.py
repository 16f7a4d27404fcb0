"""Train a small network on scikit-learn's handwritten digits with Ray Train's datasets, checkpoints and restarts.

    python examples/ray/train_digits.py --workers 2
    python examples/ray/train_digits.py --workers 2 --fail-at 3   # kills a worker in that epoch; training continues

The data are part of scikit-learn, so nothing is downloaded. Every rank runs `train`.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.data
import ray.train

from horovod.ray.train import HorovodTrainer


def load_data() -> tuple[Any, Any]:
    """Return training and held-out rows, each with an image and its label."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.data.astype("float32") / 16, digits.target.astype("int64")
    order = np.random.default_rng(1).permutation(len(labels))
    rows = [{"image": images[at], "label": labels[at]} for at in order]
    return rows[360:], rows[:360]


def train(config: dict[str, Any]) -> None:
    import numpy as np
    import torch
    import torch.nn.functional as F

    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"] * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    first, checkpoint = 0, ray.train.get_checkpoint()
    # Either all ranks get the same checkpoint, or none gets one.
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    rows = ray.train.get_dataset_shard("train")
    _, held_out = load_data()
    images = torch.tensor(np.stack([row["image"] for row in held_out]))
    labels = torch.tensor([row["label"] for row in held_out])
    for epoch in range(first, config["epochs"]):
        # Shards can differ in length. Ranks that finish early wait in `join` for the others.
        for batch in rows.iter_torch_batches(batch_size=config["batch_size"], local_shuffle_buffer_size=512):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
        hvd.join()
        if epoch == config["fail_at"] and not checkpoint and hvd.rank() == hvd.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with torch.no_grad():
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
        metrics = {"epoch": epoch, "accuracy": accuracy, "images": len(labels), "begun_at": first}
        with tempfile.TemporaryDirectory() as folder:
            if hvd.rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, Path(folder, "state.pt"))
            stored = ray.train.Checkpoint.from_directory(folder) if hvd.rank() == 0 else None
            ray.train.report(metrics, checkpoint=stored)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits with Ray Train.")
    parser.add_argument("--workers", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one worker (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--fail-at", type=int, default=-1, help="epoch in which a worker is killed (default: none)")
    parser.add_argument("--address", help="of a cluster that runs, such as auto (default: one for this program)")
    args = parser.parse_args()
    # Reserve one more CPU than the workers need, for the tasks that read Ray's datasets.
    own = {} if args.address else {"num_cpus": args.workers + 1, "include_dashboard": False}
    ray.init(address=args.address, **own)
    training, _ = load_data()
    # Use shared storage for real training runs.
    with tempfile.TemporaryDirectory() as folder:
        trainer = HorovodTrainer(
            train,
            train_loop_config={
                "epochs": args.epochs,
                "lr": args.lr,
                "batch_size": args.batch_size,
                "fail_at": args.fail_at,
            },
            scaling_config=ray.train.ScalingConfig(num_workers=args.workers),
            run_config=ray.train.RunConfig(storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=1)),
            datasets={"train": ray.data.from_items(training)},
        )
        last = trainer.fit().metrics
    print(
        f"final held-out accuracy {last['accuracy']:.4f} on {last['images']} images after epoch {last['epoch']}, "
        f"begun at epoch {last['begun_at']}"
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
