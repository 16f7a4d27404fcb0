"""Measure how fusion and the batching window affect the time to allreduce sets of gradients.

    horovodrun -np 2 python benchmarks/fusion.py [--sets many resnet] [--rounds 5] [--out runs/fusion.json]

Each process has one engine for each setting. Only one engine runs at a time; the others sleep. A step submits all
tensors of a set and then waits for each of them. Kinds of steps:

    burst       one after another, as fast as Python can, like synchronize() after backward()
    paced       evenly spread over a backward pass of --backward-ms; the result is the time beyond that pass
    negotiated  like burst, with HOROVOD_CACHE_CAPACITY=0: a program whose steps never repeat

docs/performance.md explains the choice of defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

from cases import KIB, MANY, MIB, resnet50, size_label

from horovod.benchmark.engines import EngineColumn, Memory
from horovod.benchmark.report import grid, microseconds, quantile, slowest
from horovod.benchmark.standalone.serving import pin
from horovod.common.basics import HorovodBasics
from horovod.common.objects import allgather_object

# Reverse the order, because backward produces the gradients of the last layers first.
SETS = {"many": MANY, "resnet": list(reversed(resnet50()))}
LABELS = {"many": "200 x 4 KiB", "resnet": "ResNet-50 gradients"}
KINDS = ("burst", "paced", "negotiated")
# Fusion thresholds in bytes. The last one is the default.
THRESHOLDS = (0, 64 * KIB, MIB, 8 * MIB, 32 * MIB, 128 * MIB)
# Batching windows in milliseconds. The default is 1 ms.
WINDOWS = (0.0, 0.1, 1.0, 5.0)


def settings() -> dict[str, tuple[int, float]]:
    """Return pairs (threshold, window) by label. In each pair, at least one value is the default."""
    pairs = [(threshold, 1.0) for threshold in THRESHOLDS]
    pairs += [(THRESHOLDS[-1], window) for window in WINDOWS if window != 1.0]
    return {
        f"fusion {size_label(size) if size else 'off'}, window {window:g} ms": (size, window) for size, window in pairs
    }


Figures = dict[tuple[str, str], dict[str, float]]
"""Seconds of a step (median, p10 and p90) by kind of step and label."""


class Steps:
    """One set of tensors on this rank, with functions that run a step on any engine."""

    def __init__(self, name: str, backward: float) -> None:
        self.name = name
        self._backward = backward
        self._tensors = [Memory(4 * prod(shape)) for shape in SETS[name]]
        self._counts = [prod(shape) for shape in SETS[name]]

    def step(self, engine: EngineColumn, paced: bool) -> Callable[[], float]:
        """Return a function that runs a step and returns its duration in seconds.

        The time spent in a simulated backward pass is subtracted.
        """
        submits = [
            engine.submitter(f"allreduce.{self.name}.{i}", memory, count)
            for i, (memory, count) in enumerate(zip(self._tensors, self._counts, strict=True))
        ]
        pause = self._backward / len(submits) if paced else 0.0

        def run() -> float:
            start = time.perf_counter()
            works = []
            for number, submit in enumerate(submits):
                while pause and time.perf_counter() - start < pause * (number + 1):
                    # Simulate the backward pass by busy-waiting.
                    pass
                works.append(submit())
            for work in works:
                work.wait()
            return time.perf_counter() - start - pause * len(submits)

        return run


def measure(steps: Steps, engines: dict[tuple[str, bool], EngineColumn], rounds: int, samples: int) -> Figures:
    """Measure the steps of one set of gradients on all engines. Return the same results on all ranks."""
    runs = {
        (kind, label): (steps.step(engine, kind == "paced"), engine.barrier)
        for kind in KINDS
        for (label, negotiated), engine in engines.items()
        if negotiated == (kind == "negotiated")
    }
    local: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for turn in range(rounds):
        for key, (run, barrier) in runs.items():
            # The engine builds a schedule in the first steps, so run them before measuring.
            for _ in range(5 if turn == 0 else 1):
                run()
            for _ in range(samples):
                barrier()
                local[key].append(run())
    by_rank = allgather_object(local, f"fusion.{steps.name}")
    times = {key: slowest([ranks[key] for ranks in by_rank]) for key in local}
    return {
        key: {name: quantile(values, q) for name, q in (("median", 0.5), ("p10", 0.1), ("p90", 0.9))}
        for key, values in times.items()
    }


def table(name: str, found: Figures) -> str:
    """Return a table of the results for all settings and kinds of steps."""
    lines = [[LABELS[name], *(f"{kind}, us" for kind in KINDS)]]
    for label in settings():
        cells = [{q: microseconds(seconds) for q, seconds in found[kind, label].items()} for kind in KINDS]
        lines.append([label, *(f"{cell['median']} ({cell['p10']}-{cell['p90']})" for cell in cells)])
    return grid(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each setting (default 5)")
    parser.add_argument("--samples", type=int, default=10, help="steps of a turn (default 10)")
    parser.add_argument(
        "--backward-ms", type=float, default=30.0, help="length of the paced backward pass (default 30)"
    )
    parser.add_argument("--no-pin", action="store_true", help="leave it to the system which core runs which thread")
    parser.add_argument("--out", type=Path, help="write the rows here, as JSON")
    args = parser.parse_args()
    basics = HorovodBasics("benchmark")
    basics.init()
    cores = sorted(os.sched_getaffinity(0))
    # Pass zeros, because only the engine's cost model uses this list, and this benchmark does not need the model.
    node_of = [0] * basics.size()
    engines: dict[tuple[str, bool], EngineColumn] = {}
    for label, (threshold, window) in settings().items():
        for negotiated in (False, True):
            environ = {"HOROVOD_FUSION_THRESHOLD": str(threshold), "HOROVOD_CYCLE_TIME": f"{window:g}"}
            environ |= {"HOROVOD_CACHE_CAPACITY": "0"} if negotiated else {}
            engines[label, negotiated] = EngineColumn(label, environ, node_of)
    if not args.no_pin:
        pin(cores[basics.local_rank() % len(cores)])
    backward = args.backward_ms * 1e-3
    found = {name: measure(Steps(name, backward), engines, args.rounds, args.samples) for name in args.sets}
    for engine in engines.values():
        engine.stop()
    if basics.rank() == 0:
        print(f"{basics.size()} ranks, {len(cores)} cores; a step: median (10th to 90th percentile)\n")
        print("\n\n".join(table(name, figures) for name, figures in found.items()), flush=True)
        if args.out:
            rows = [
                {"set": name, "kind": kind, "way": label, **figures}
                for name, all_figures in found.items()
                for (kind, label), figures in all_figures.items()
            ]
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
    basics.shutdown()


if __name__ == "__main__":
    main()
