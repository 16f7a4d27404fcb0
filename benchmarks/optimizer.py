"""Measure what DistributedOptimizer and its parts add to a backward pass, compared with asynchronous calls and DDP.

    horovodrun -np 2 python benchmarks/optimizer.py [--rounds 7] [--cases many resnet]

The model's backward pass returns prepared gradients (peers/model.py), so it costs only autograd's overhead, and the
rest is communication. All variants run in the same processes in turn, so changes of the machine's speed affect all of
them. benchmarks/README.md explains the tables.
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
from horovod.torch.agreement import BUCKET, SMALL

Step = Callable[[], None]

WARM_UP = 60  # steps before the measured ones, until the variant's schedule runs again


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
        optimizer._hvd.reducer.stepped()  # like step(), but without the update, which is not measured

    return both


def ddp(case: Case) -> Step:
    model = GradientsOnly(case.shapes)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return lambda: step(parallel, model)


def raw(name: str, tensors: list[torch.Tensor]) -> Step:
    """Return a step of ``allreduce_async_`` of every tensor, then ``synchronize``."""
    names = [f"{name}.{i}" for i in range(len(tensors))]

    def together() -> None:
        handles = [hvd.allreduce_async_(t, name=n) for t, n in zip(tensors, names, strict=True)]
        for handle in handles:
            hvd.synchronize(handle)

    return together


def parts(case: Case) -> dict[str, Step]:
    """Return steps that do parts of the default's work, without an optimizer."""
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
"""Variants that include backward; the difference to backward alone is reported."""


def measure(case: Case, rounds: int, steps: int) -> dict[str, list[float]]:
    """Return each variant's median step time on this rank in microseconds, by round."""
    every = variants(case)
    medians: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, run in every.items():
            few = max(2, steps // 4) if name == "DDP" else steps  # much slower, and needs no warm-up
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
    """Return the lines of a table with the values of the slowest rank in each round."""
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
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host
    meeting = hvd.broadcast_object(tempfile.mktemp() if hvd.rank() == 0 else None, 0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=hvd.rank(), world_size=hvd.size())
    dist.barrier()  # starts all threads
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
