"""Train a small network on scikit-learn's handwritten digits in Ray actors.

    python examples/ray/digits.py --workers 2
    python examples/ray/digits.py --workers 2 --elastic        # workers may come and go
    python examples/ray/digits.py --workers 8 --address auto   # on a running cluster

The data are part of scikit-learn, so nothing is downloaded. Every rank runs `train`; the code below it is about Ray.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray

from horovod.ray import RayExecutor


def load_data() -> Any:
    """Return the training and held-out images and labels, using the same split on every rank."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    return images[order[360:]], labels[order[360:]], images[order[:360]], labels[order[:360]]


def train(epochs: int, lr: float, batch_size: int) -> float:
    """Train a network on this rank, and return the held-out accuracy."""
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    import horovod.torch as hvd
    from horovod.ray import ray_logger

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels, test_images, test_labels = load_data()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(TensorDataset(images, labels))
    loader = DataLoader(TensorDataset(images, labels), batch_size, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    def accuracy() -> float:
        with torch.no_grad():
            return (model(test_images).argmax(1) == test_labels).float().mean().item()

    def loop(state: Any) -> None:
        loss = torch.tensor(float("nan"))
        while state.epoch < epochs:
            for index, (batch, labels) in enumerate(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch), labels)
                loss.backward()
                optimizer.step()
                state.sampler.record_batch(index, batch_size)
                state.check_host_updates()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            ray_logger.log({"epoch": state.epoch, "loss": loss.item(), "accuracy": accuracy(), "ranks": hvd.size()})
            # Only rank 0's values are passed to Ray's callbacks.
            state.commit()

    # In a job of fixed size, `hvd.elastic.run` calls the function only once.
    hvd.elastic.run(loop)(state)
    hvd.check_in_sync(model)
    return accuracy()


def show(last: dict[str, Any]) -> None:
    print(
        "epoch {epoch:3d}  loss {loss:.4f}  held-out accuracy {accuracy:.4f}  {ranks} ranks".format(**last), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits in actors of Ray.")
    parser.add_argument("--workers", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--elastic", action="store_true", help="from one worker on, as many as there is room for")
    parser.add_argument("--epochs", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--address", help="of a cluster that runs, such as auto (default: one for this program)")
    args = parser.parse_args()
    own = {} if args.address else {"num_cpus": args.workers, "include_dashboard": False}
    ray.init(address=args.address, **own)

    limits = {"min_workers": 1, "elastic_timeout": 120} if args.elastic else {}
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=args.workers, **limits)
    executor.start()
    try:
        results = executor.run(train, args=[args.epochs, args.lr, args.batch_size], callbacks=[show])
    finally:
        executor.shutdown()
    print(f"final held-out accuracy {results[0]:.4f} on 360 images, on each of {len(results)} ranks")
    ray.shutdown()


if __name__ == "__main__":
    main()
