"""Programs that --auto must refuse, each in a function. Run by ``python -m horovod.auto``; prints what was refused."""

import subprocess
import sys

import torch
from torch.utils import data as sets

from horovod.auto.session import AutoError

data = sets.TensorDataset(torch.ones(6, 2))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Backwards(sets.Sampler):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(range(5, -1, -1))

    def __len__(self):
        return len(self.data)


class Stream(sets.IterableDataset):
    def __iter__(self):
        return iter(torch.ones(4, 2))


def train(loader, change=lambda: None):
    for batch in loader:
        optimizer.zero_grad()
        model(batch[0]).sum().backward()
        change()
        optimizer.step()


def assigned():
    parameter = next(model.parameters())
    setattr(parameter, "grad", parameter.grad.clamp(-1, 1))  # noqa: B010  (not visible in the source)


def without_loader():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def evaluates_in_training_mode():
    for _ in sets.DataLoader(data, batch_size=2):
        pass


def length_of_evaluation():
    loader = sets.DataLoader(data, batch_size=2)
    count = len(loader)
    with torch.no_grad():
        return count, list(loader)


def batches(loader):
    yield from loader


def length_after_training():
    train(loader := sets.DataLoader(data, batch_size=2))
    with torch.no_grad():
        return len(loader), list(batches(loader))


CASES = {
    "sampler": lambda: train(sets.DataLoader(data, sampler=Backwards(data))),
    "batch sampler": lambda: train(sets.DataLoader(data, batch_sampler=sets.BatchSampler(Backwards(data), 2, False))),
    "replicas": lambda: train(sets.DataLoader(data, sampler=sets.DistributedSampler(data, num_replicas=5, rank=3))),
    "noise": lambda: train(sets.DataLoader(data, batch_size=4), lambda: torch.randn(4, 2)),
    "iterable": lambda: train(sets.DataLoader(Stream(), batch_size=2)),
    "gradients": lambda: train(sets.DataLoader(data, batch_size=2), assigned),
    "no loader": without_loader,
    "evaluation": evaluates_in_training_mode,
    "length": length_of_evaluation,
    "length after training": length_after_training,
    "process": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "devices": lambda: torch.nn.DataParallel(model),
    "distributed": lambda: torch.distributed.init_process_group("gloo"),
}
for name, case in CASES.items():
    try:
        case()
    except AutoError as error:
        print(f"{name}: {error}")
train(sets.DataLoader(data, batch_size=2, sampler=sets.SequentialSampler(data)))
print("trained")
