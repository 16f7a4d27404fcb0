"""Elastic training of a small network on scikit-learn's handwritten digits.

    echo 'echo localhost:4' > hosts.sh; sed -i '1i #!/bin/sh' hosts.sh; chmod +x hosts.sh
    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh python examples/elastic/pytorch_digits.py

Kill a worker, or change the output of hosts.sh, and the job continues with the remaining or new workers. The lines
marked `# Elastic:` make a Horovod program elastic.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and held-out images, using the same shuffled split on every worker."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    return TensorDataset(images[order[360:]], labels[order[360:]]), TensorDataset(
        images[order[:360]], labels[order[:360]]
    )


# Elastic: run the function again with the current state whenever workers leave or join.
@hvd.elastic.run
def train(state: hvd.elastic.TorchState, loader: DataLoader, args: argparse.Namespace) -> None:
    print(f"goes on in epoch {state.epoch} as rank {hvd.rank()} of {hvd.size()}", flush=True)
    # The loss stays NaN if the epoch has no batches left.
    loss = torch.tensor(float("nan"))
    # should_stop() returns True once any rank has received SIGTERM.
    while state.epoch < args.epochs and not hvd.should_stop():
        for index, (images, labels) in enumerate(loader):
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(images), labels)
            loss.backward()
            state.optimizer.step()
            # Elastic: record finished batches, so that they are not repeated.
            state.sampler.record_batch(index, args.batch_size)
            # Elastic: let new workers join.
            state.check_host_updates()
            time.sleep(args.pause)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}/{args.epochs}  loss {loss.item():.4f}  {hvd.size()} ranks", flush=True)
        # Elastic: save the state that is restored after a failed step.
        state.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits, elastically.")
    parser.add_argument("--epochs", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.02, help="s after each step, to have time to watch it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train_set, test_set = load_data()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))

    # A new worker reaches this call only after its slow setup. Until then, the other workers continue training.
    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Elastic: use each image once per epoch.
    sampler = hvd.elastic.ElasticSampler(train_set)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    def adapt() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    # Elastic: adapt the learning rate to the number of workers.
    state.register_reset_callbacks([adapt])
    train(state, loader, args)

    model.eval()
    with torch.no_grad():
        images, labels = test_set.tensors
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    digest = hvd.check_in_sync(model, accuracy=accuracy)
    if hvd.rank() == 0:
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")
        print(f"final held-out accuracy {accuracy:.4f} on {len(labels)} images", flush=True)


if __name__ == "__main__":
    main()
