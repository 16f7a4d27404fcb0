"""Measure how elastic jobs recover from failures, compared with torchrun on the same training.

    python benchmarks/elastic.py [--parts kill join many] [--kills 20] [--peer-kills 3]

Parts: *kill* repeatedly kills one of 4 ranks (SIGKILL). In *join*, a new worker gets a state of 1 GB. *many* kills one
of 64 processes without a framework. All run on this machine.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import elastic_jobs as jobs
from elastic_figures import (
    Line,
    lost,
    pause,
    recovery,
    row,
    seconds,
    spread,
)
from report import quantile

Folder = Callable[[str], Path]
RANKS = 4
KILLS_A_JOB = 25
GB = 1 << 30


@dataclass
class Kills:
    """Results of one measurement in which workers are killed.

    ``recoveries`` has the seconds from each kill until all workers have completed a step again. ``lost`` has the number
    of steps repeated after each kill. ``pauses`` has the seconds for which the other workers pause when a new worker
    joins.
    """

    recoveries: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    # True if a kill ended the whole job. The lists above do not include this kill.
    failed: bool = False

    def cell(self) -> str:
        if not self.recoveries:
            return "failed"
        steps = f"; {sum(self.lost)} steps done again in all, {max(self.lost)} at most" if self.lost else ""
        return f"{spread(self.recoveries)} ({len(self.recoveries)} kills){steps}" + (
            "; then it failed" if self.failed else ""
        )


# -- one of 4 ranks is killed ------------------------------------------------------------------------------------------


def kill_horovod(folder: Folder, count: int, rng: random.Random, kills: Kills) -> None:
    """Kill workers in several jobs, with only a few kills per job.

    Each wait rereads the workers' entire event files, so more kills in one job would take too long.
    """
    flags = ["-np", str(RANKS), "--min-np", "2", "--max-np", str(RANKS)]
    for first in range(0, count, KILLS_A_JOB):
        path = folder("ours")
        job = jobs.horovodrun(path, jobs.worker("horovod", path), f"localhost:{RANKS}", flags)
        try:
            for _ in range(min(KILLS_A_JOB, count - first)):
                kill_one(job, kills, rng)
        finally:
            job.close()


def kill_torchrun(folder: Folder, count: int, rng: random.Random, kills: Kills) -> None:
    path = folder("torchrun")
    job = jobs.torchrun(path, RANKS, count + 1)
    try:
        for _ in range(count):
            workers = job.until_train(RANKS)
            at = strike(rng.choice(sorted(workers)), rng)
            new = job.until_train(RANKS, 1, but=workers)
            note(kills, job.lines(), set(new), at)
    finally:
        job.close()


def kill_one(job: jobs.Job, kills: Kills, rng: random.Random) -> None:
    """Kill a worker, and wait until the others continue and a new worker has joined."""
    workers = job.until_train(RANKS)
    victim = rng.choice(sorted(workers))
    rest = set(workers) - {victim}
    at = strike(victim, rng)
    note(kills, job.until(lambda lines: recovery(lines, rest, at) is not None, "going on"), rest, at)
    lines = job.until(lambda lines: pause(lines, rest, at, RANKS) is not None, "a newcomer")
    kills.pauses.append(pause(lines, rest, at, RANKS) or 0.0)


def strike(victim: int, rng: random.Random) -> float:
    # Kill at a random moment within a step.
    time.sleep(rng.uniform(0.0, 0.05))
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return at


def note(kills: Kills, lines: list[Line], killed: set[int], at: float) -> None:
    kills.recoveries.append(recovery(lines, killed, at) or 0.0)
    kills.lost.append(lost(lines, killed, at))


def kill(folder: Folder, options: argparse.Namespace) -> list[str]:
    found = {}
    rng = random.Random(options.seed)
    for name, measure, count in (
        ("horovod", kill_horovod, options.kills),
        ("torchrun", kill_torchrun, options.peer_kills),
    ):
        if count:
            found[name] = Kills()
            try:
                measure(folder, count, rng, found[name])
            except SystemExit as error:
                # Report the failure, but keep the results obtained so far.
                found[name].failed = True
                print(error, file=sys.stderr)
    rows = [row(f"kill -9 of one of {RANKS} ranks: {name}", kills.cell()) for name, kills in found.items()]
    if "horovod" in found and found["horovod"].recoveries:
        horovod_median = quantile(found["horovod"].recoveries, 0.5)
        if "torchrun" in found and found["torchrun"].recoveries:
            times = f"{quantile(found['torchrun'].recoveries, 0.5) / horovod_median:.0f}x"
            rows.append(row("how much longer torchrun takes (p50)", times))
        rows.append(row("pause while a newcomer joins, small state", spread(found["horovod"].pauses)))
    return rows


# -- a new worker with a large state, many processes -------------------------------------------------------------------


def join(folder: Folder, options: argparse.Namespace) -> list[str]:
    """Measure how long a rank pauses when a second rank joins from another simulated host, with TCP between the two."""
    pauses = {}
    for extra in (4, options.state):
        path = folder("join")
        program = jobs.worker("horovod", path, "--extra", str(extra))
        job = jobs.horovodrun(path, program, "127.0.0.1:1", ["-np", "1", "--min-np", "1", "--max-np", "2"])
        try:
            workers, since = job.until_train(1), time.monotonic()
            jobs.hosts(path, "127.0.0.1:1\n127.0.0.2:1")
            lines = job.until(lambda lines: pause(lines, workers, since, 2) is not None, "a newcomer")  # noqa: B023
            pauses[extra] = pause(lines, workers, since, 2) or 0.0
        finally:
            job.close()
    small, large = pauses[4], pauses[options.state]
    speed = options.state / max(large - small, 1e-9)
    cell = f"{seconds(large)}, without it {seconds(small)}: {speed / 1e9:.2f} GB/s"
    return [row(f"pause while a newcomer gets {options.state / GB:g} GiB over TCP", cell)]


def many(folder: Folder, options: argparse.Namespace) -> list[str]:
    found = []
    for _ in range(options.repeats):
        path, count = folder("many"), options.workers
        flags = ["-np", str(count), "--min-np", "2", "--max-np", str(count), "--start-timeout", "300"]
        command = jobs.worker("bare", path, "--pause", "0.2")
        job = jobs.horovodrun(path, command, f"localhost:{count}", flags)
        try:
            workers = job.until_train(count, 3)
            rest = set(list(workers)[1:])
            at = strike(next(iter(workers)), random.Random(options.seed))
            lines = job.until(lambda lines: recovery(lines, rest, at) is not None, "going on")  # noqa: B023
            found.append(recovery(lines, rest, at) or 0.0)
        finally:
            job.close()
    return [row(f"kill -9 of one of {options.workers} bare processes", spread(found))]


# -- main program ------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Folder, Any], list[str]]] = {"kill": kill, "join": join, "many": many}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="some of them (default: all)")
    result.add_argument("--kills", type=int, default=20, help="kills of ranks of Horovod (default: %(default)s)")
    result.add_argument("--peer-kills", type=int, default=3, help="kills under torchrun (default: %(default)s)")
    result.add_argument("--state", type=int, default=GB, help="bytes that a newcomer gets (default: 1 GiB)")
    result.add_argument("--workers", type=int, default=64, help="processes of the part many (default: %(default)s)")
    result.add_argument("--repeats", type=int, default=1, help="repeats of the part many (default: %(default)s)")
    result.add_argument("--seed", type=int, default=7, help="seed of random choices (default: %(default)s)")
    return result


def main() -> None:
    options = parser().parse_args()
    rows, failed = [], False
    with jobs.folders() as folder:
        for name in options.parts:
            before = os.getloadavg()[0]
            try:
                rows += (of_part := PARTS[name](folder, options))
                # Print each result immediately. The table follows at the end of the run.
                print("\n".join(of_part), file=sys.stderr)
            except SystemExit as error:
                # Report the failure, but keep the results of the other benchmarks.
                print(error, file=sys.stderr)
                rows.append(row(name, "failed"))
                failed = True
            print(f"{name}: load {before:.1f} before, {os.getloadavg()[0]:.1f} after", file=sys.stderr, flush=True)
    print("\n".join(["| What | Figure |", "|---|---|", *rows]))
    print(f"\n{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} at the end")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
