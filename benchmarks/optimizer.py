"""What DistributedOptimizer adds to a backward pass, beside raw asynchronous calls and DDP, and which part is whose.

    horovodrun -np 2 python benchmarks/optimizer.py [--rounds 7] [--cases many resnet]

The model's backward pass hands out gradients that lie ready (peers/model.py), so that it alone costs what autograd
costs and the rest is the exchange. All variants live in the same processes and take turns, round by round: a machine
that changes its speed changes it for all. How to read the tables: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from cases import Case, gradient_sets
from peers.model import GradientsOnly
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from horovod.torch.bucket_plan import BUCKET, SMALL

Step = Callable[[], None]

WARM_UP = 60  # steps before those that are counted: until the schedule of this variant runs again


def alone(case: Case) -> Step:
    model = GradientsOnly(case.shapes)
    return lambda: step(model, model)


def step(model: torch.nn.Module, inner: GradientsOnly) -> None:
    model(None).backward()
    inner.drop_gradients()


def distributed(case: Case, name: str, bucket_views: bool | None) -> Step:
    model = GradientsOnly(case.shapes)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=[(f"{case.kind}.{name}.{n}", p) for n, p in model.named_parameters()],
        gradient_as_bucket_view=bucket_views,
    )

    def both() -> None:
        step(model, model)
        optimizer._hvd.reducer.stepped()  # as step() does; the update itself is not what is measured

    return both


def ddp(case: Case) -> Step:
    model = GradientsOnly(case.shapes)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return lambda: step(parallel, model)


def raw(name: str, tensors: list[torch.Tensor]) -> Step:
    """``allreduce_async_`` of every tensor, then ``synchronize``."""
    names = [f"{name}.{i}" for i in range(len(tensors))]

    def together() -> None:
        handles = [hvd.allreduce_async_(t, name=n) for t, n in zip(tensors, names, strict=True)]
        for handle in handles:
            hvd.synchronize(handle)

    return together


def parts(case: Case) -> dict[str, Step]:
    """What the default has to do, piece by piece, without an optimizer."""
    model = GradientsOnly(case.shapes)
    for weight in model.weights:
        weight.register_post_accumulate_grad_hook(lambda _: None)
    small = [g for g in model.gradients if g.numel() * 4 <= SMALL]
    large = [g for g in model.gradients if g.numel() * 4 > SMALL]
    flat = hvd.empty_shared(sum(g.numel() for g in small))
    places = [v.view(g.shape) for v, g in zip(flat.split([g.numel() for g in small]), small, strict=True)]
    weights = list(model.weights)

    def copy() -> None:
        torch._foreach_copy_(places, small)

    def assign() -> None:
        for weight, gradient in zip(weights, model.gradients, strict=True):
            weight.grad = gradient

    vote = torch.zeros(len(weights), dtype=torch.uint8)
    sent = [vote, *flat.split(BUCKET // 4), *large]
    return {
        "hooks that do nothing": lambda: step(model, model),
        "copies of small gradients": copy,
        "assignments to param.grad": assign,
        "raw calls for the buckets, the large gradients and a vote": raw(f"{case.kind}.sent", sent),
    }


def variants(case: Case) -> dict[str, Step]:
    tensors = [torch.ones(shape).zero_() for shape in reversed(case.shapes)]
    return {
        "backward alone": alone(case),
        "raw asynchronous calls": raw(f"{case.kind}.raw", tensors),
        "optimizer": distributed(case, "default", None),
        "optimizer, gradient_as_bucket_view=True": distributed(case, "views", True),
        "optimizer, gradient_as_bucket_view=False": distributed(case, "single", False),
        "DDP": ddp(case),
        **parts(case),
    }


ADDS = ("optimizer", "DDP", "hooks")
"""Variants that go backward, too: what they add is the difference to backward alone."""


def measure(case: Case, rounds: int, steps: int) -> dict[str, list[float]]:
    """Microseconds of each variant: by round the median of its steps; on this rank."""
    every = variants(case)
    medians: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, run in every.items():
            few = max(2, steps // 4) if name == "DDP" else steps  # it takes many times as long, and needs no warming
            hvd.barrier()
            for _ in range(few if name == "DDP" else WARM_UP):
                run()
            taken = []
            for _ in range(few):
                start = time.perf_counter()
                run()
                taken.append(time.perf_counter() - start)
            medians[name].append(1e6 * statistics.median(taken))
    return medians


def report(case: Case, ranks: list[dict[str, list[float]]]) -> list[str]:
    """Lines of a table; a round's figure is the slowest rank's."""
    slowest = {name: [max(values) for values in zip(*(r[name] for r in ranks), strict=True)] for name in ranks[0]}
    base = slowest["backward alone"]
    calls = statistics.median(slowest["raw asynchronous calls"])
    lines = [f"| {case.label} | us | beside the raw calls |", "|---|---|---|"]
    for name, values in slowest.items():
        adds = name.startswith(ADDS)
        own = sorted(v - b for v, b in zip(values, base, strict=True)) if adds else sorted(values)
        label = f"{name}, addition" if adds else name
        middle = statistics.median(own)
        lines.append(f"| {label} | {middle:,.0f} ({own[0]:,.0f} - {own[-1]:,.0f}) | {middle / calls:.2f}x |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="What DistributedOptimizer adds to a backward pass.")
    parser.add_argument("--rounds", type=int, default=7, help="turns of every variant (default %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps in a turn (default %(default)s)")
    parser.add_argument("--cases", nargs="+", choices=[c.kind for c in gradient_sets()], help="default: all")
    parser.add_argument("--realtime", action="store_true", help="run before whatever else keeps the machine busy")
    args = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here
    meeting = hvd.broadcast_object(tempfile.mktemp() if hvd.rank() == 0 else None, 0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=hvd.rank(), world_size=hvd.size())
    dist.barrier()  # all threads are there
    cores = sorted(os.sched_getaffinity(0))
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, {cores[hvd.local_rank() % len(cores)]})
        if args.realtime:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
    for case in gradient_sets():
        if args.cases and case.kind not in args.cases:
            continue
        everybody = hvd.allgather_object(measure(case, args.rounds, args.steps))
        if hvd.rank() == 0:
            print("\n".join(["", *report(case, everybody)]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
