"""Measure how to scale the learning rate with the number of workers, on handwritten digits and on text.

    python benchmarks/learning_rates.py [--samples 30000] [--seeds 3] [--workers 1,2,4,8,16,32] [--optimizers SGD,LARS]
    python benchmarks/learning_rates.py --study growth      # a growing batch instead of a falling rate
    python benchmarks/learning_rates.py --study momentum    # momentum correction while the rate grows
    python benchmarks/learning_rates.py --study gpt         # a small transformer with AdamW on 4 and 16 workers

One process simulates n workers by a batch n times as large, which gives the same gradients as n workers of synchronous
training. All runs see the same number of samples, so n workers take 1/n of the steps. Prints, for each optimizer and
rule, the mean held-out accuracy over the seeds, with the lowest and highest. The rate of one worker is the best of
`RATES` for it, found first. The data are part of scikit-learn. LARS and LAMB need `pip install pytorch_optimizer`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

# Number of samples per worker in each step.
BATCH = 16
RATES = {
    "SGD": (0.05, 0.1, 0.2),
    "SGD with momentum": (0.005, 0.01, 0.02, 0.05),
    "Adam": (0.0005, 0.001, 0.002),
    "LARS": (2.0, 5.0, 10.0, 20.0),
    "LAMB": (0.002, 0.005, 0.01, 0.02),
}
DEFAULT = "SGD,SGD with momentum,Adam"
RULES: dict[str, Callable[[int], float]] = {"none": lambda n: 1.0, "sqrt": math.sqrt, "linear": float}
# Fraction of all steps that are used for learning rate warm-up.
WARM_UP = 0.1
# Fractions of the training samples after which the learning rate is divided, or the batch size multiplied, by FACTOR.
DROPS = (0.5, 0.75)
FACTOR = 4


@functools.cache
def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the training and test images with their labels."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    return (x[360:], y[360:]), (x[:360], y[:360])


def optimizer_of(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    if name == "Adam":
        return torch.optim.Adam(model.parameters(), lr=rate)
    if name in ("LARS", "LAMB"):
        import pytorch_optimizer

        optimizer: torch.optim.Optimizer = getattr(pytorch_optimizer, name.replace("LAMB", "Lamb"))(
            model.parameters(), lr=rate, weight_decay=0.0
        )
        return optimizer
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9 if "momentum" in name else 0.0)


def accuracy(
    name: str,
    rate: float,
    workers: int,
    warm_up: bool,
    seed: int,
    samples: int,
    drops: str = "",
    correction: bool = False,
) -> tuple[float, int]:
    """Train a network, and return its held-out accuracy and the number of steps taken.

    Args:
        name: Key of `RATES`.
        rate: Learning rate after the warm-up.
        workers: Number of simulated workers.
        warm_up: Let the rate grow linearly over the first steps.
        seed: Random seed.
        samples: Number of samples to train on.
        drops: "rate" or "batch": the rate falls or the batch grows at `DROPS`. Empty: neither.
        correction: Scale the momentum of SGD with the rate, as Goyal et al. 2017 do.
    """
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = data()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optimizer_of(name, model, rate)
    visited = steps = 0
    before = rate
    while visited < samples:
        passed = sum(visited >= drop * samples for drop in DROPS) if drops else 0
        batch = BATCH * workers * (FACTOR**passed if drops == "batch" else 1)
        now = rate / (FACTOR**passed if drops == "rate" else 1)
        if warm_up:
            now *= min(1.0, (visited + batch) / max(1.0, WARM_UP * samples))
        for group in optimizer.param_groups:
            group["lr"] = now
            if correction:
                group["momentum"] = 0.9 * now / before
        before = now
        chosen = torch.randint(len(y), (batch,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        visited, steps = visited + batch, steps + 1
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item(), steps


def accuracies(args: argparse.Namespace, *settings: Any, **more: Any) -> list[float]:
    """Return the accuracy in percent for each seed. Takes the same arguments as `accuracy`."""
    return [100 * accuracy(*settings, seed, args.samples, **more)[0] for seed in range(1, args.seeds + 1)]


def cell(found: list[float]) -> str:
    return f"{statistics.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})"


def row(cells: Iterable[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def scaling(args: argparse.Namespace) -> None:
    """Print a table of accuracies for all optimizers, scaling rules and numbers of workers."""
    row(["optimizer", "rule", "warm-up", *(f"{n} workers" for n in args.workers)])
    row(["---"] * (3 + len(args.workers)))
    for name in args.optimizers.split(","):
        means = {rate: statistics.mean(accuracies(args, name, rate, 1, False)) for rate in RATES[name]}
        base = max(means, key=means.__getitem__)
        for rule, factor in RULES.items():
            for warm_up in (False, True):
                cells = [cell(accuracies(args, name, base * factor(n), n, warm_up)) for n in args.workers]
                row([name, rule, "yes" if warm_up else "no", *cells])
        row([name, f"rate of one worker: {base:g}", "", *[""] * len(args.workers)])


def growth(args: argparse.Namespace) -> None:
    """Compare decaying the learning rate with increasing the batch size by the same factors."""
    row(["optimizer", "constant", f"rate falls by {FACTOR}, twice", f"batch grows by {FACTOR}, twice", "steps"])
    row(["---"] * 5)
    for name in args.optimizers.split(","):
        rate, modes = max(RATES[name]), ("", "rate", "batch")
        steps = (str(accuracy(name, rate, 1, False, 1, args.samples, mode)[1]) for mode in modes)
        row([name, *(cell(accuracies(args, name, rate, 1, False, drops=mode)) for mode in modes), ", ".join(steps)])


def momentum(args: argparse.Namespace) -> None:
    """Compare learning rate warm-up with and without momentum correction."""
    name = "SGD with momentum"
    row(["momentum correction", *(f"{n} workers" for n in args.workers)])
    row(["---"] * (1 + len(args.workers)))
    for correction in (False, True):
        found = (accuracies(args, name, max(RATES[name]) * n, n, True, correction=correction) for n in args.workers)
        row(["yes" if correction else "no", *map(cell, found)])


def gpt(args: argparse.Namespace) -> None:
    """Print the held-out losses of the transformer in examples/strategies/compare.py."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples/strategies"))
    from compare import Chars

    task = Chars()

    def loss(rate: float, workers: int, seed: int) -> float:
        torch.manual_seed(seed)
        model = task.model()
        optimizer = task.optimizer(model, rate)
        steps = args.samples // (BATCH * workers)
        for step, batch in enumerate(itertools.islice(task.batches(BATCH * workers, seed), steps), 1):
            optimizer.param_groups[0]["lr"] = rate * min(1.0, step / (WARM_UP * steps))
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
        with torch.no_grad():
            return float(task.loss(model, task.test))

    def losses(rate: float, workers: int) -> list[float]:
        return [loss(rate, workers, seed) for seed in range(1, args.seeds + 1)]

    base = min((0.001, 0.003, 0.01), key=lambda rate: statistics.mean(losses(rate, 1)))
    row(["workers", f"rate {base:g}", "sqrt", "linear"])
    row(["---"] * 4)
    for workers in (1, 4, 16):
        found = [losses(base * factor(workers), workers) for factor in RULES.values()][: 1 if workers == 1 else 3]
        row([str(workers), *(f"{statistics.mean(one):.3f} ({min(one):.3f} to {max(one):.3f})" for one in found)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=30_000, help="in each run (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--optimizers", default=DEFAULT, help=f"of {', '.join(RATES)} (default %(default)s)")
    studies = {"scaling": scaling, "growth": growth, "momentum": momentum, "gpt": gpt}
    parser.add_argument("--study", choices=studies, default="scaling")
    args = parser.parse_args()
    torch.set_num_threads(1)
    studies[args.study](args)


if __name__ == "__main__":
    main()
