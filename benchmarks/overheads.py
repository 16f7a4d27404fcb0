"""Measure the engine's overheads: negotiation in the steady state, observers, and CPU time while idle.

    horovodrun -np 2 python benchmarks/overheads.py [--idle 10] [--realtime]

It trains a small network until its steps repeat, and counts the requests and negotiations of the next steps, and the
engine's CPU time outside of collectives. It measures the cost of step accounting, of training checks and of the noise
scale. It sleeps, and measures the CPU time used meanwhile. Rank 0 prints a table.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import threading
import time

import torch
from torch import nn

import horovod.torch as hvd
from horovod.common.frontends import state
from horovod.torch import monitoring
from horovod.torch.reducer.submissions import Norms

MIB = 1 << 20
# Number of warm-up steps and number of measured steps. After the warm-up, the engine repeats its schedule without
# negotiation.
SETTLE, STEPS = 100, 400
ACCOUNTED = 5000


def stats() -> dict[str, float]:
    assert state.engine is not None
    return {name: float(value) for name, value in state.engine.stats().items()}


def agreeing() -> list[str]:
    """Measure steady-state negotiation for a network with 66 parameters."""
    layers = [layer for _ in range(33) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    data = torch.randn(4, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(SETTLE):
        step()
    before = stats()
    for _ in range(STEPS):
        step()
    after = stats()
    spent = {name: (after[name] - before[name]) / STEPS for name in after}
    return [
        f"| operations (buckets of gradients, and the vote on who has which) a step | {spent['operations']:.0f} |",
        f"| requests announced a step | {spent['announcements']:.3f} |",
        f"| operations negotiated a step | {spent['negotiated']:.3f} |",
        f"| schedules left in {STEPS} steps | {after['revocations'] - before['revocations']:.0f} |",
        f"| engine's CPU time a step beside collectives | {1e6 * spent['control_seconds']:.1f} us |",
    ]


def accounting() -> list[str]:
    """Measure the cost of hvd.step() and the CPU time that the threads of step accounting use with steps of 1 ms."""
    model = nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    data = torch.randn(4, 64)
    hvd.barrier()
    start, used = time.monotonic(), observers_cpu()
    for _ in range(ACCOUNTED):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        time.sleep(0.001)
    elapsed, used = time.monotonic() - start, observers_cpu() - used
    start = time.perf_counter()
    for _ in range(ACCOUNTED):
        hvd.step()
    mark = (time.perf_counter() - start) / ACCOUNTED
    rate = ACCOUNTED / elapsed
    return [
        f"| step accounting: the mark of a step | {1e6 * mark:.2f} us |",
        f"| step accounting: its threads, with {rate:.0f} steps a second | {100 * used / elapsed:.3f} % of a core |",
    ]


def checking(pairs: int = 60) -> list[str]:
    """Measure the cost of the training checks and of the noise scale, for ResNet-50's parameters.

    The cost of the checks is the difference between a call that compares parameters and one that does not. The cost of
    the noise scale is the time for measuring gradient norms. No training steps are timed, because their duration varies
    by more than these costs.
    """
    shapes = [(64, 3, 7, 7), *[(256, 256, 3, 3)] * 30, *[(256, 64)] * 30, *[(256,)] * 99, (1000, 2048)]
    torch.manual_seed(0)
    named = {torch.nn.Parameter(torch.randn(shape) * 0.01): str(i) for i, shape in enumerate(shapes)}
    for p in named:
        p.grad = torch.ones_like(p)

    def comparing(steps: int) -> float:
        begin = time.perf_counter()
        monitoring.after_step(named, "benchmark", hvd.global_process_set, steps, True)
        return time.perf_counter() - begin

    def measuring() -> float:
        begin = time.perf_counter()
        norms = Norms()
        for p in named:
            norms.add(p.grad)
        norms.reduced()
        norms.squares().tolist()
        return time.perf_counter() - begin

    comparisons = [comparing(1000 * number) - comparing(1000 * number + 1) for number in range(1, pairs)]
    begin = time.perf_counter()
    for _ in range(ACCOUNTED):
        monitoring.is_compared(1001)
        monitoring.after_step(named, "benchmark", hvd.global_process_set, 1001, True)
    other = (time.perf_counter() - begin) / ACCOUNTED
    norms = [measuring() for _ in range(pairs)]
    mib = sum(4 * p.numel() for p in named) / MIB
    return [
        f"| training checks: a comparison, each 1,000th step, {len(named)} parameters | {spread(comparisons)} |",
        f"| training checks: each other step | {1e6 * other:.2f} us |",
        f"| noise scale: a sample, each 16th step or less often, {mib:.0f} MiB | {spread(norms)} |",
    ]


def spread(seconds: list[float]) -> str:
    """Return the median and the 10th and 90th percentiles in milliseconds."""
    deciles = statistics.quantiles(seconds, n=10)
    return f"{1e3 * statistics.median(seconds):.2f} ms ({1e3 * deciles[0]:.2f}-{1e3 * deciles[-1]:.2f})"


def observers_cpu() -> float:
    """Return the CPU seconds of all telemetry threads, both in Python and in the engine."""
    python = {
        str(thread.native_id) for thread in threading.enumerate() if thread.name in ("hvd-steps", "hvd-telemetry")
    }
    used = 0.0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm, open(f"/proc/self/task/{task}/schedstat") as figures:
                if task in python or comm.read().strip() in ("hvd-answer", "hvd-timeline"):
                    used += int(figures.read().split()[0]) * 1e-9
        except FileNotFoundError:
            # Ignore threads that have exited.
            continue
    return used


def idle(seconds: float) -> list[str]:
    hvd.barrier()
    time.sleep(1)
    start, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return [f"| idle: share of a core | {100 * cpu / (time.monotonic() - start):.3f} % |"]


def main() -> None:
    parser = argparse.ArgumentParser(description="What the engine costs beside moving bytes.")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to be idle (default %(default)s)")
    parser.add_argument("--realtime", action="store_true", help="run before other programs (root)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    hvd.init()
    rows = [*agreeing(), *accounting(), *checking(), *idle(args.idle)]
    from_all = hvd.allgather_object(rows)
    if hvd.rank() == 0:
        for rank, lines in enumerate(from_all):
            print(
                "\n".join(
                    [f"| rank {rank} of {hvd.size()}, {len(os.sched_getaffinity(0))} cores | |", "|---|---|", *lines]
                )
            )


if __name__ == "__main__":
    main()
