"""Training program for benchmarks/planner.py, which simulates computation by sleeping.

    python benchmarks/planner_program.py --width 256 --layers 8 --steps 10 --out FILE [--profile] [--compression NAME]

Rank 0 writes the wall-clock and CPU time of its steps. With ``--profile``, it writes the profile of a step instead.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import horovod.torch as hvd

WARM_UP = 5


class Sleep(torch.autograd.Function):
    """Identity function whose backward pass sleeps for the given time."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)
        return gradients[0], None


class Layer(torch.nn.Module):
    """Linear layer whose forward and backward passes sleep for the given time."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        found: torch.Tensor = Sleep.apply(self.linear(x), 2 * self.seconds)  # type: ignore[no-untyped-call]
        return found


def train(args: argparse.Namespace, compression: str) -> dict[str, Any]:
    """Return the wall-clock time of each step after the warm-up, and the CPU time of this process in all of them."""
    model = torch.nn.Sequential(*(Layer(args.width, args.seconds) for _ in range(args.layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=getattr(hvd.Compression, compression)
    )
    if args.profile:
        hvd.profile(args.out, steps=args.steps)
    seconds = []
    used = 0.0
    for step in range(WARM_UP + args.steps + 1):
        if step == WARM_UP:
            used = time.process_time()
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(torch.ones(4, args.width)).sum().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds[WARM_UP:], "cpu_seconds": time.process_time() - used}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a layer's forward")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    found = train(args, args.compression)
    if hvd.rank() == 0 and not args.profile:
        args.out.write_text(json.dumps(found))
    hvd.shutdown()


if __name__ == "__main__":
    main()
