"""Train a small convolutional network on scikit-learn's handwritten digits, on one or more workers.

    horovodrun -np 2 python examples/pytorch/digits.py
    horovodrun -np 2 python examples/pytorch/digits.py --epochs 40 --resume

The data (1,797 images of 8 x 8 pixels) are part of scikit-learn, so nothing is downloaded. The lines marked `#
Horovod:` are all that Horovod adds to the training itself; other calls of `hvd.` report numbers about the whole job
instead of one worker's share.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import horovod.torch as hvd


class Net(nn.Module):
    """Model of two convolutions and two dense layers, from images (n, 1, 8, 8) to logits (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.dropout = nn.Dropout(0.3)
        self.dense1 = nn.Linear(64 * 4 * 4, 128)
        self.dense2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.dense1(self.dropout(x.flatten(1))))
        return self.dense2(self.dropout(x))


def load_data(seed: int, held_out: float) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and held-out images, using the same seeded split on every worker."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order.tensor_split([round(held_out * len(labels))])
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def shift(images: Tensor) -> Tensor:
    """Shift every image by -1, 0 or 1 pixels in each dimension, to augment the 1,400 images."""
    n, _, height, width = images.shape
    padded = F.pad(images, (1, 1, 1, 1))
    rows = torch.randint(0, 3, (n, 1, 1)) + torch.arange(height).view(1, -1, 1)
    columns = torch.randint(0, 3, (n, 1, 1)) + torch.arange(width).view(1, 1, -1)
    return padded[torch.arange(n).view(-1, 1, 1), 0, rows, columns].unsqueeze(1)


def set_learning_rate(optimizer: torch.optim.Optimizer, peak: float, epoch: int, epochs: int) -> None:
    """Set the learning rate: linear warm-up over a tenth of the epochs, then cosine decay to zero."""
    warm_up = max(1, epochs // 10)
    factor = min(
        (epoch + 1) / warm_up, (1 + math.cos(math.pi * max(0, epoch - warm_up) / max(1, epochs - warm_up))) / 2
    )
    for group in optimizer.param_groups:
        group["lr"] = peak * factor


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], bar: tqdm[Any]) -> Any:
    """Train for one epoch and return the loss as a metric."""
    model.train()
    mean = hvd.Metric("mean")
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(shift(images)), labels)
        loss.backward()
        optimizer.step()
        mean.update(loss, len(labels))
        bar.update()
    return mean


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[Any]) -> tuple[float, float]:
    """Return the loss and the accuracy over the images of all ranks."""
    model.eval()
    loss, accuracy = hvd.Metric("mean"), hvd.Metric("accuracy")
    for images, labels in loader:
        logits = model(images)
        loss.update(F.cross_entropy(logits, labels, reduction="none"))
        accuracy.update(logits, labels)
    return loss.compute(), accuracy.compute()


def check_same_everywhere(model: nn.Module) -> None:
    """Print a digest of the parameters, or end the job if they differ between ranks."""
    digest = hvd.check_in_sync(model)
    if hvd.rank() == 0:
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}", flush=True)


def report(epoch: int, epochs: int, train: Any, test: tuple[float, float], rate: float) -> None:
    """Print a one-line summary of an epoch. ``rate`` is the number of images per second on this rank."""
    rates = hvd.allgather(torch.tensor([rate], dtype=torch.float64), name="rates")
    loss = train.compute()
    if hvd.rank() == 0:
        tqdm.write(
            f"epoch {epoch:3d}/{epochs}  loss {loss:.4f}  held-out loss {test[0]:.4f}  held-out accuracy {test[1]:.4f}"
            f"  images/s {rates.mean():,.0f} per worker, {rates.sum():,.0f} in total"
        )


def positive(kind: type) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return parse


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    parser.add_argument(
        "--epochs", type=positive(int), default=20, help="epochs in all, resumed ones included (default %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=positive(int), default=32, help="images per worker and step (default %(default)s)"
    )
    parser.add_argument(
        "--lr", type=positive(float), default=0.03, help="learning rate of one worker (default %(default)s)"
    )
    parser.add_argument(
        "--held-out", type=positive(float), default=0.2, help="share of the images for testing (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="for data order, initial weights and dropout (default %(default)s)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("runs/digits"), help="directory for checkpoints (default %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="continue from --checkpoint")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if args.held_out >= 1:
        parser.error(f"--held-out: {args.held_out} is not between 0 and 1")
    return args


def main() -> None:
    args = parse_args()
    # Horovod: initialize Horovod.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    # Use a different dropout seed on each rank. The broadcast below makes the initial weights equal.
    torch.manual_seed(args.seed + rank)

    train_set, test_set = load_data(args.seed, args.held_out)
    # Horovod: give each rank a shard of the data.
    sampler = DistributedSampler(train_set, num_replicas=size, rank=rank, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    # EvalSampler visits each image once. DistributedSampler would repeat images to make all shards equal.
    test_loader = DataLoader(test_set, batch_size=256, sampler=hvd.EvalSampler(test_set))

    model = Net()
    # Horovod: scale the learning rate, because the global batch is larger.
    peak = args.lr * size
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9)
    # Horovod: average the gradients.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Horovod: start all ranks with rank 0's weights.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    done = hvd.load_checkpoint(args.checkpoint, model=model, optimizer=optimizer) if args.resume else 0
    if done is None:
        raise SystemExit(f"--resume: no checkpoint in {args.checkpoint}; run once without --resume")

    if rank == 0:
        count = sum(p.numel() for p in model.parameters())
        print(
            f"{size} workers, {count:,} parameters, {len(train_set)} training images, {len(test_set)} held out",
            flush=True,
        )
        if args.resume:
            print(f"resumed from {args.checkpoint} after epoch {done}", flush=True)
    began = time.perf_counter()
    steps = max(0, args.epochs - done) * len(train_loader)
    with tqdm(total=steps, unit="step", mininterval=1.0, disable=args.no_progress or rank != 0) as bar:
        for epoch in range(done, args.epochs):
            sampler.set_epoch(epoch)
            set_learning_rate(optimizer, peak, epoch, args.epochs)
            bar.set_description(f"epoch {epoch + 1}/{args.epochs}", refresh=False)
            start = time.perf_counter()
            train = train_epoch(model, optimizer, train_loader, bar)
            seconds = time.perf_counter() - start
            report(epoch + 1, args.epochs, train, evaluate(model, test_loader), len(sampler) / seconds)
            # Check that all ranks have the same state, because the checkpoint contains only the state of rank 0.
            hvd.check_in_sync(model, optimizer)
            hvd.save_checkpoint(args.checkpoint, step=epoch + 1, model=model, optimizer=optimizer)

    _, accuracy = evaluate(model, test_loader)
    if rank == 0:
        print(f"trained for {time.perf_counter() - began:.1f} s, checkpoint in {args.checkpoint}", flush=True)
        print(f"final held-out accuracy {accuracy:.4f} on {len(test_set)} images", flush=True)
    check_same_everywhere(model)


if __name__ == "__main__":
    main()
