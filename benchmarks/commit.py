"""Measure the cost of committing an elastic state, relative to a training step: PyTorch on the CPU, with momentum.

    horovodrun -np 2 python benchmarks/commit.py [--network resnet50] [--batch 8] [--pairs 30]

Steps with `state.commit()` and steps that only check for changed hosts alternate in the same processes. The copy runs
in parallel with the next step and may slow it down. So the result is the time of a whole step between two commits,
minus that of a step without commits; the time of the call itself is reported as well.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peers.training import resnet18, resnet50

import horovod.torch as hvd


@dataclass(frozen=True)
class Cost:
    """Median durations in seconds of steps with and without a commit."""

    without: float
    """Time of a step that only checks for changed hosts."""
    call: float
    """Time of the call of `commit()`."""
    extra: float
    """Additional time of a step with a commit: median over pairs of consecutive steps."""
    low: float
    """Lower quartile of the pairs' differences."""
    high: float
    """Upper quartile of the pairs' differences."""

    @property
    def share(self) -> float:
        """Extra time per commit, as a fraction of a step without a commit."""
        return self.extra / self.without


def cost(without: Sequence[float], with_commit: Sequence[float], calls: Sequence[float]) -> Cost:
    """Compute the cost of a commit from the durations of steps with and without it, and of ``commit()`` itself."""
    more = [b - a for a, b in zip(without, with_commit, strict=True)]
    low, _, high = statistics.quantiles(more, n=4)
    return Cost(statistics.median(without), statistics.median(calls), statistics.median(more), low, high)


def line(name: str, numbers: int, found: Cost) -> str:
    call = f"{found.call * 1e3:.2f} ms ({found.call / found.without:.2%})"
    extra = f"{found.extra * 1e3:+.1f} ms ({found.low * 1e3:+.1f} to {found.high * 1e3:+.1f})"
    return (
        f"{name}, {numbers / 1e6:.1f} million numbers of state: a step {found.without * 1e3:.0f} ms; commit() {call}; "
        f"a step with a commit {extra}, {found.share:+.2%} of a step"
    )


NETWORKS = {"resnet50": (resnet50, 224), "resnet18": (resnet18, 32)}
"""Functions that create the networks, and the sizes of their images."""


def measure(network: str, batch: int, pairs: int, block: int) -> tuple[int, Cost]:
    make, size = NETWORKS[network]
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    state.sync()
    calls = []

    def step(commits: bool) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        state.step += 1
        begin = time.perf_counter()
        (state.commit if commits else state.check_host_updates)()
        if commits:
            calls.append(time.perf_counter() - begin)

    def steps(commits: bool) -> float:
        state.wait()
        # Discard the first step of a block, because it can overlap with background copies of the previous block.
        step(commits)
        begin = time.perf_counter()
        for _ in range(block):
            step(commits)
        return (time.perf_counter() - begin) / block

    for _ in range(3):
        step(True)
    calls.clear()
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(pairs):
        for commits in (False, True) if number % 2 == 0 else (True, False):
            times[commits].append(steps(commits))
    return 2 * sum(p.numel() for p in model.parameters()), cost(times[False], times[True], calls)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a commit costs, as a share of a step.")
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet50", help="(default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="images per rank and step (default %(default)s)")
    parser.add_argument("--pairs", type=int, default=15, help="blocks with and without commits (default %(default)s)")
    parser.add_argument("--block", type=int, default=2, help="steps of each that count (default %(default)s)")
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(max(1, torch.get_num_threads() // hvd.local_size()))
    numbers, found = measure(args.network, args.batch, args.pairs, args.block)
    for rank, one in enumerate(hvd.allgather_object(found)):
        if hvd.rank() == 0:
            print(line(f"rank {rank}: {args.network}, batch {args.batch}", numbers, one), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
