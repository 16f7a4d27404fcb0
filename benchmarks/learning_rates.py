"""Measure how the learning rate should grow with the number of workers, on handwritten digits.

    python benchmarks/learning_rates.py [--samples 30000] [--seeds 3] [--workers 1,2,4,8,16,32]

One process simulates n workers by a batch n times as large, which gives the same gradients as n workers of synchronous
training. All runs see the same number of samples, so n workers take 1/n of the steps. Prints, for each optimizer and
rule, the mean held-out accuracy over the seeds, with the lowest and highest. The rate of one worker is the best of
`RATES` for it, found first. The data are part of scikit-learn.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH = 16  # samples per worker and step
RATES = {"SGD": (0.05, 0.1, 0.2), "SGD with momentum": (0.005, 0.01, 0.02, 0.05), "Adam": (0.0005, 0.001, 0.002)}
RULES: dict[str, Callable[[int], float]] = {"none": lambda n: 1.0, "sqrt": math.sqrt, "linear": float}
WARM_UP = 0.1  # fraction of the steps


@functools.cache
def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (images, labels) for training and for testing."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    return (x[360:], y[360:]), (x[:360], y[:360])


def optimizer_of(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    if name == "Adam":
        return torch.optim.Adam(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9 if "momentum" in name else 0.0)


def accuracy(name: str, rate: float, workers: int, warm_up: bool, seed: int, samples: int) -> float:
    """Train with these settings and return the held-out accuracy."""
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = data()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optimizer_of(name, model, rate)
    steps = max(1, samples // (BATCH * workers))
    for step in range(steps):
        if warm_up:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / max(1.0, WARM_UP * steps))
        chosen = torch.randint(len(y), (BATCH * workers,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=30_000, help="in each run (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16, 32])
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1, args.seeds + 1)
    print("| optimizer | rule | warm-up | " + " | ".join(f"{n} workers" for n in args.workers) + " |")
    print("|---" * (3 + len(args.workers)) + "|")
    for name, rates in RATES.items():

        def mean(rate: float, name: str = name) -> float:
            return statistics.mean(accuracy(name, rate, 1, False, seed, args.samples) for seed in seeds)

        base = max(rates, key=mean)
        for rule, factor in RULES.items():
            for warm_up in (False, True):
                cells = []
                for n in args.workers:
                    found = [accuracy(name, base * factor(n), n, warm_up, seed, args.samples) for seed in seeds]
                    low, high = min(found), max(found)
                    cells.append(f"{100 * statistics.mean(found):.1f} ({100 * low:.1f} to {100 * high:.1f})")
                label = f"| {name} | {rule} | {'yes' if warm_up else 'no'} | "
                print(label + " | ".join(cells) + " |", flush=True)
        print(f"| {name} | rate of one worker: {base:g} | " + " | " * len(args.workers) + " |")


if __name__ == "__main__":
    main()
