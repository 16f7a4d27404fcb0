"""Elastic training of a small network on scikit-learn's handwritten digits.

    echo 'echo localhost:4' > hosts.sh; sed -i '1i #!/bin/sh' hosts.sh; chmod +x hosts.sh
    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh python examples/elastic/pytorch_digits.py

Kill a worker, or change the output of hosts.sh, and the job continues with the remaining or new workers. The lines
marked `# elastic` make a Horovod program elastic.
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
    """Return training and held-out images, split by the same shuffle on every worker."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    return TensorDataset(images[order[360:]], labels[order[360:]]), TensorDataset(
        images[order[:360]], labels[order[:360]]
    )


@hvd.elastic.run  # elastic 1: reruns the function with the current state after the workers change
def train(state: hvd.elastic.TorchState, loader: DataLoader, args: argparse.Namespace) -> None:
    print(f"goes on in epoch {state.epoch} as rank {hvd.rank()} of {hvd.size()}", flush=True)
    loss = torch.tensor(float("nan"))  # Default if the epoch has no batches left.
    while state.epoch < args.epochs and not hvd.should_stop():  # True after any rank got SIGTERM.
        for index, (images, labels) in enumerate(loader):
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(images), labels)
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(index, args.batch_size)  # elastic 2: do not repeat finished batches.
            state.check_host_updates()  # elastic 3: new workers can join here.
            time.sleep(args.pause)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}/{args.epochs}  loss {loss.item():.4f}  {hvd.size()} ranks", flush=True)
        state.commit()  # elastic 4: save the state to return to after a failed step


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

    hvd.init()  # call this after slow setup: the others keep training until a new worker calls it
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(train_set)  # elastic 5: use each image once per epoch
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    def adapt() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    state.register_reset_callbacks([adapt])  # elastic 6: adapt the learning rate to the number of workers
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
