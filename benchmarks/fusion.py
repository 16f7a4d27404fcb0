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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Way:
    """Fusion threshold and batching window for one engine."""

    threshold: int
    window: float

    @property
    def label(self) -> str:
        size = "off" if self.threshold == 0 else size_label(self.threshold)
        return f"fusion {size}, window {self.window:g} ms"


def ways() -> list[Way]:
    """Return the settings to compare: every threshold with the default window, then every other window."""
    found = [Way(threshold, 1.0) for threshold in THRESHOLDS]
    return found + [Way(THRESHOLDS[-1], window) for window in WINDOWS if window != 1.0]


@dataclass(frozen=True)
class Row:
    """Step durations in seconds for one tensor set, one kind of step (such as "burst") and one engine setting."""

    set: str
    kind: str
    way: str
    median: float
    p10: float
    p90: float
    samples: int


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


def measure(
    steps: Sequence[Steps], engines: dict[tuple[Way, bool], EngineColumn], rounds: int, samples: int
) -> list[Row]:
    """Measure all settings and return the results, which are the same on all ranks."""
    rows = []
    for one in steps:
        runs = {
            (kind, way.label): (one.step(engine, kind == "paced"), engine.barrier)
            for kind in KINDS
            for (way, negotiated), engine in engines.items()
            if negotiated == (kind == "negotiated")
        }
        local: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
        for turn in range(rounds):
            for key, (run, barrier) in runs.items():
                # The engine builds its schedule during the first steps, so run those before measuring.
                for _ in range(5 if turn == 0 else 1):
                    run()
                for _ in range(samples):
                    barrier()
                    local[key].append(run())
        by_rank = allgather_object(local, f"fusion.{one.name}")
        for (kind, label), mine in local.items():
            times = slowest([ranks[kind, label] for ranks in by_rank])
            spread = [quantile(times, q) for q in (0.5, 0.1, 0.9)]
            rows.append(Row(one.name, kind, label, *spread, len(mine)))
    return rows


def table(rows: Sequence[Row], name: str) -> str:
    """Return a table of the results for all settings and kinds of steps."""
    lines = [[LABELS[name], *(f"{kind}, us" for kind in KINDS)]]
    for label in dict.fromkeys(row.way for row in rows):
        found = {row.kind: row for row in rows if (row.set, row.way) == (name, label)}
        cells = [
            f"{microseconds(found[kind].median)} ({microseconds(found[kind].p10)}-{microseconds(found[kind].p90)})"
            for kind in KINDS
        ]
        lines.append([label, *cells])
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
    engines: dict[tuple[Way, bool], EngineColumn] = {}
    for way in ways():
        for negotiated in (False, True):
            settings = {
                "HOROVOD_FUSION_THRESHOLD": str(way.threshold),
                "HOROVOD_CYCLE_TIME": f"{way.window:g}",
                **({"HOROVOD_CACHE_CAPACITY": "0"} if negotiated else {}),
            }
            engines[way, negotiated] = EngineColumn(way.label, settings, node_of)
    if not args.no_pin:
        pin(cores[basics.local_rank() % len(cores)])
    rows = measure([Steps(name, args.backward_ms * 1e-3) for name in args.sets], engines, args.rounds, args.samples)
    for engine in engines.values():
        engine.stop()
    if basics.rank() == 0:
        print(f"{basics.size()} ranks, {len(cores)} cores; a step: median (10th to 90th percentile)\n")
        print("\n\n".join(table(rows, name) for name in args.sets), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    basics.shutdown()


if __name__ == "__main__":
    main()
