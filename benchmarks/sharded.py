"""Compare the memory per rank and the time per step of ways to divide a model among ranks, with Adam on CPUs.

    horovodrun -np 2 python benchmarks/sharded.py [--layers 2] [--width 1024] [--rounds 10]

The methods are built one after another in the same processes. The growth of a rank's resident memory is taken after a
step, without gradients, and as the peak of a step. Then the methods take turns, one step in each round, in another
order each time. Memory is that of the rank that has most, and a step takes as long as on the slowest rank.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples/pytorch"))
from large_gpt import GPT

MB = 1e6
# For each method, a function of the number of ranks. It returns the bytes per parameter for parameters and buckets, and
# the bytes per parameter for Adam's state after a step.
THEORY: dict[str, Callable[[int], tuple[float, float]]] = {
    "DistributedOptimizer": lambda n: (4, 8),
    "ShardedOptimizer": lambda n: (4, 8 / n),
    # Count the gradients too, because DDP keeps its gradient buckets between steps.
    "DDP, ZeroRedundancyOptimizer": lambda n: (8, 8 / n),
    "FSDP2": lambda n: (4 / n, 8 / n),
}


def build(method: str, shape: tuple[int, int, int, int]) -> tuple[torch.nn.Module, Any]:
    """Create a model of ``shape`` (layers, width, heads, context) and its optimizer."""
    torch.manual_seed(1)
    model: Any = GPT(*shape, wrap=fully_shard if method == "FSDP2" else lambda module: module)
    if method == "DDP, ZeroRedundancyOptimizer":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if method == "FSDP2":
        return model, optimizer
    return model, getattr(hvd, method)(optimizer, named_parameters=model.named_parameters())


def step(model: torch.nn.Module, optimizer: Any, windows: torch.Tensor) -> None:
    F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def resident(key: str) -> int:
    """Return this process's resident memory in bytes (``VmRSS``), or its peak (``VmHWM``) since `forget_peak`."""
    # Return free memory to the system, so that the measurement does not count it.
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[key].split()[0]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def state_bytes(optimizer: Any) -> int:
    state = optimizer.optim.state if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer.state
    tensors = [value for entries in state.values() for value in entries.values()]
    local = [value.to_local() if hasattr(value, "to_local") else value for value in tensors]
    return sum(tensor.nbytes for tensor in local if isinstance(tensor, torch.Tensor))


def highest(values: list[float], name: str) -> list[float]:
    """For each value, return the maximum over all ranks."""
    result: list[float] = hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Max, name=name).tolist()
    return result


def measure(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure each method: ``state``, ``resident`` and ``peak`` memory in bytes, and ``seconds`` per step."""
    shape = args.layers, args.width, args.width // 64, args.context
    windows = torch.randint(256, (1, args.context + 1), generator=torch.Generator().manual_seed(hvd.rank()))
    # Warm up, to load libraries and create threads.
    plain, optimizer = build("DistributedOptimizer", (1, 64, 1, args.context))
    step(plain, optimizer, windows)
    built, found = {}, {}
    for method in THEORY:
        before = resident("VmRSS")
        model, optimizer = built[method] = build(method, shape)
        for _ in range(3):
            forget_peak()
            step(model, optimizer, windows)
        figures = [state_bytes(optimizer), resident("VmRSS") - before, resident("VmHWM") - before]
        found[method] = dict(zip(("state", "resident", "peak"), highest(figures, "memory"), strict=True))
    order = list(THEORY)
    times: dict[str, list[float]] = {method: [] for method in THEORY}
    for _ in range(args.rounds):
        order.append(order.pop(0))
        for method in order:
            hvd.barrier()
            begin = time.perf_counter()
            step(*built[method], windows)
            times[method] += highest([time.perf_counter() - begin], "seconds")
    return {method: {**found[method], "seconds": times[method]} for method in THEORY}


def table(results: dict[str, dict[str, Any]], parameters: int, ranks: int) -> str:
    """Return a Markdown table of the measured and the theoretical values."""
    lines = ["| | Adam's state, formula | Adam's state | resident, formula | resident | peak of a step | step, ms |"]
    lines.append("|" + "---|" * 7)
    for method, one in results.items():
        kept, state = (value * parameters / MB for value in THEORY[method](ranks))
        low, median, high = statistics.quantiles(one["seconds"], n=4)
        memory = f"{one['state'] / MB:.0f} | {kept + state:.0f} | {one['resident'] / MB:.0f} | {one['peak'] / MB:.0f}"
        lines.append(
            f"| {method} | {state:.0f} | {memory} | {median * 1e3:.0f} ({low * 1e3:.0f} to {high * 1e3:.0f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="transformer blocks (default %(default)s)")
    parser.add_argument("--width", type=int, default=1024, help="model width, a multiple of 64 (default %(default)s)")
    parser.add_argument("--context", type=int, default=32, help="tokens of a rank in a step (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="steps of each method, at least 2 (default %(default)s)")
    args = parser.parse_args()
    hvd.init()
    dist.init_process_group("hvd", init_method="hvd://")
    results = measure(args)
    if hvd.rank() == 0:
        with torch.device("meta"):
            shape = args.layers, args.width, args.width // 64, args.context
            parameters = sum(p.numel() for p in GPT(*shape, wrap=lambda module: module).parameters())
        print(
            f"{hvd.size()} ranks, {parameters:,} parameters, memory in MB\n\n{table(results, parameters, hvd.size())}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
