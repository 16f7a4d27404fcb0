"""Search for a learning rate and a batch size with Ray Tune, where each trial is a job of two ranks.

    python examples/ray/tune_digits.py
    python examples/ray/tune_digits.py --lrs 0.01 0.05 --batches 16 64 --workers 2 --at-once 2

Ray Tune runs as many trials at once as fit on the cluster. At the end, the example prints a table of all trials.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import ray
from ray import tune

from horovod.ray.tune import report, trainable


def train(config: dict[str, Any]) -> None:
    """Train a model with a trial's config. Called on each rank of the trial."""
    import torch
    import torch.nn.functional as F
    from sklearn.datasets import load_digits
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    test_images, test_labels = images[order[:360]], labels[order[:360]]
    train_set = TensorDataset(images[order[360:]], labels[order[360:]])

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train_set, config["batch_size"], sampler=sampler)
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
        with torch.no_grad():
            logits = model(test_images)
        accuracy = (logits.argmax(1) == test_labels).float().mean().item()
        report({"loss": F.cross_entropy(logits, test_labels).item(), "accuracy": accuracy, "epoch": epoch + 1})


def main() -> None:
    parser = argparse.ArgumentParser(description="Find a learning rate and a batch size for handwritten digits.")
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.01, 0.1], help="(default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64], help="per rank (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="ranks of a trial (default %(default)s)")
    parser.add_argument("--at-once", type=int, default=2, help="trials (default %(default)s)")
    args = parser.parse_args()
    ray.init(num_cpus=args.workers * args.at_once, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            trainable(train, args.workers, timeout_s=60),
            param_space={
                "lr": tune.grid_search(args.lrs),
                "batch_size": tune.grid_search(args.batches),
                "epochs": args.epochs,
            },
            tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        results = tuner.fit()
        for failed in results.errors:
            print(failed)
        print(f"{'lr':>8} {'batch':>6} {'loss':>8} {'accuracy':>9}")
        for one in sorted((one for one in results if not one.error), key=lambda one: -one.metrics["accuracy"]):
            print(
                f"{one.config['lr']:8g} {one.config['batch_size']:6d} {one.metrics['loss']:8.4f} "
                f"{one.metrics['accuracy']:9.4f}"
            )
    ray.shutdown()


if __name__ == "__main__":
    main()
