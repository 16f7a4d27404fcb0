"""Measure how elastic jobs recover from failures, compared with torchrun and torchft on the same training.

    python benchmarks/elastic.py [--parts kill,join,many,idle] [--kills 20] [--peer-kills 3] [--json FILE]

Parts: *kill* repeatedly kills one of 4 ranks (SIGKILL). In *join*, a new worker gets a state of 1 GB. *many* kills one
of 64 processes without a framework. *idle* alternates steps of an elastic job and of a fixed one. All run on this
machine.
"""

from __future__ import annotations

import argparse
import json
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
    ratio_of_turns,
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
    """Results of one measurement, in seconds and steps per kill.

    ``pauses`` has the seconds for which the other workers pause when a new worker joins.
    """

    recoveries: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    # True if the whole job failed after a further kill, for which there are no results.
    failed: bool = False

    def cell(self) -> str:
        if not self.recoveries:
            return "failed"
        steps = f"; {sum(self.lost)} steps done again in all, {max(self.lost)} at most" if self.lost else ""
        return f"{spread(self.recoveries)} ({len(self.recoveries)} kills){steps}" + (
            "; then it failed" if self.failed else ""
        )


# -- one of 4 ranks is killed ------------------------------------------------------------------------------------------


def kill_ours(folder: Folder, count: int, drawn: random.Random, made: Kills) -> None:
    """Kill workers in several jobs, a few in each job.

    Each job has few kills, because each wait rereads the workers' whole event files.
    """
    flags = ["-np", str(RANKS), "--min-np", "2", "--max-np", str(RANKS)]
    for first in range(0, count, KILLS_A_JOB):
        where = folder("ours")
        job = jobs.ours(where, jobs.worker("horovod", where), f"localhost:{RANKS}", flags)
        try:
            for _ in range(min(KILLS_A_JOB, count - first)):
                kill_one(job, made, drawn, newcomer=True)
        finally:
            job.close()


def kill_torchrun(folder: Folder, count: int, drawn: random.Random, made: Kills) -> None:
    where = folder("torchrun")
    job = jobs.torchrun(where, RANKS, count + 1)
    try:
        for _ in range(count):
            there = job.until_train(RANKS)
            at = strike(drawn.choice(sorted(there)), drawn)
            new = job.until_train(RANKS, 1, but=there)
            note(made, job.lines(), set(new), at)
    finally:
        job.close()


def kill_torchft(folder: Folder, count: int, drawn: random.Random, made: Kills) -> None:
    job = jobs.Torchft(folder("torchft"), RANKS)
    try:
        for _ in range(count):
            kill_one(job, made, drawn, newcomer=False)
            job.again()
    finally:
        job.close()


def kill_one(job: jobs.Job, made: Kills, drawn: random.Random, newcomer: bool) -> None:
    """Kill a worker and wait until the others continue. With `newcomer`, also wait for a new worker."""
    there = job.until_train(RANKS)
    victim = drawn.choice(sorted(there))
    rest = set(there) - {victim}
    at = strike(victim, drawn)
    note(made, job.until(lambda lines: recovery(lines, rest, at) is not None, "going on"), rest, at)
    if newcomer:
        lines = job.until(lambda lines: pause(lines, rest, at, RANKS) is not None, "a newcomer")
        made.pauses.append(pause(lines, rest, at, RANKS) or 0.0)


def strike(victim: int, drawn: random.Random) -> float:
    # Kill at a random moment within a step.
    time.sleep(drawn.uniform(0.0, 0.05))
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return at


def note(made: Kills, lines: list[Line], who: set[int], at: float) -> None:
    made.recoveries.append(recovery(lines, who, at) or 0.0)
    made.lost.append(lost(lines, who, at))


def kill(folder: Folder, options: argparse.Namespace) -> list[str]:
    found, notes = {}, {}
    drawn = random.Random(options.seed)
    for name, measure, count in (
        ("horovod", kill_ours, options.kills),
        ("torchrun", kill_torchrun, options.peer_kills),
        ("torchft", kill_torchft, options.peer_kills),
    ):
        if name == "torchft" and not has_torchft():
            notes[name] = "not installed"
        elif count:
            found[name] = Kills()
            try:
                measure(folder, count, drawn, found[name])
            except SystemExit as error:
                # Report the failure, but keep the results obtained so far.
                found[name].failed = True
                print(error, file=sys.stderr)
    options.figures["kill"] = {name: vars(kills) for name, kills in found.items()}
    rows = [row(f"kill -9 of one of {RANKS} ranks: {name}", kills.cell(), GOALS[name]) for name, kills in found.items()]
    rows += [row(f"kill -9 of one of {RANKS} ranks: {name}", text, GOALS[name]) for name, text in notes.items()]
    if "horovod" in found and found["horovod"].recoveries:
        mine = quantile(found["horovod"].recoveries, 0.5)
        peers = {name: kills.recoveries for name, kills in found.items() if name != "horovod" and kills.recoveries}
        times = [f"{name} {quantile(values, 0.5) / mine:.0f}x" for name, values in peers.items()]
        rows.append(row("how much longer peers take (p50)", ", ".join(times) or "-", "20x torchrun"))
        rows.append(row("pause while a newcomer joins, small state", spread(found["horovod"].pauses), "under 0.5 s"))
    return rows


GOALS = {"horovod": "p50 under 0.3 s, p99 under 1 s; 0 steps", "torchrun": "-", "torchft": "-"}


def has_torchft() -> bool:
    try:
        import torchft  # noqa: F401
    except ImportError as error:
        print(f"torchft is left out: {error}", file=sys.stderr)
        return False
    return True


# -- a new worker with a large state, many processes -------------------------------------------------------------------


def join(folder: Folder, options: argparse.Namespace) -> list[str]:
    """Measure how long a rank pauses when a second rank joins from another simulated host, with TCP between the two."""
    pauses = {}
    links = [both_loopbacks()]
    for extra in (4, options.state):
        where = folder("join")
        program = jobs.worker("horovod", where, "--extra", str(extra))
        job = jobs.ours(where, program, "127.0.0.1:1", ["-np", "1", "--min-np", "1", "--max-np", "2"])
        try:
            there, since = job.until_train(1), time.monotonic()
            jobs.hosts(where, "127.0.0.1:1\n127.0.0.2:1")
            lines = job.until(lambda lines: pause(lines, there, since, 2) is not None, "a newcomer")  # noqa: B023
            pauses[extra] = pause(lines, there, since, 2) or 0.0
        finally:
            job.close()
        links.append(both_loopbacks())
    small, large = pauses[4], pauses[options.state]
    speed = options.state / max(large - small, 1e-9)
    cached, bare = (sorted(link)[1] for link in zip(*links, strict=True))
    options.figures["join"] = {"small": small, "large": large, "state": options.state, "links": links}
    cell = (
        f"{seconds(large)}, without it {seconds(small)}: {speed / 1e9:.2f} GB/s; a bare connection {bare / 1e9:.2f} "
        f"between two buffers of 1 GiB ({speed / bare:.0%}), {cached / 1e9:.2f} between two that caches hold "
        f"({speed / cached:.0%})"
    )
    return [row(f"pause while a newcomer gets {options.state / GB:g} GiB over TCP", cell, "80 % of the link")]


def both_loopbacks() -> tuple[float, float]:
    return jobs.loopback(GB), jobs.loopback(GB, whole=True)


def many(folder: Folder, options: argparse.Namespace) -> list[str]:
    found = []
    for _ in range(options.repeats):
        where, count = folder("many"), options.workers
        flags = ["-np", str(count), "--min-np", "2", "--max-np", str(count), "--start-timeout", "300"]
        command = jobs.worker("bare", where, "--pause", "0.2")
        job = jobs.ours(where, command, f"localhost:{count}", flags)
        try:
            there = job.until_train(count, 3)
            rest = set(list(there)[1:])
            at = strike(next(iter(there)), random.Random(options.seed))
            lines = job.until(lambda lines: recovery(lines, rest, at) is not None, "going on")  # noqa: B023
            found.append(recovery(lines, rest, at) or 0.0)
        finally:
            job.close()
    options.figures["many"] = found
    return [row(f"kill -9 of one of {options.workers} bare processes", spread(found), "under 1 s")]


# -- no faults ---------------------------------------------------------------------------------------------------------


def idle(folder: Folder, options: argparse.Namespace) -> list[str]:
    count, kinds = 2, ("fixed", "elastic")
    places = {kind: folder(kind) for kind in kinds}
    programs = {kind: jobs.worker(kind, places[kind], "--width", str(options.width)) for kind in kinds}
    flags = ["-np", str(count), "--min-np", str(count)]
    running = [jobs.fixed(places["fixed"], programs["fixed"], count)]
    try:
        running.append(jobs.ours(places["elastic"], programs["elastic"], f"localhost:{count}", flags))
        by_kind = dict(zip(kinds, running, strict=True))
        turns: list[tuple[float, float]] = []
        for number in range(options.turns + 1):
            took = {}
            # Alternate which of the two jobs runs first.
            for kind in kinds if number % 2 else reversed(kinds):
                (places[kind] / f"go.{number}").touch()
                lines = by_kind[kind].until(lambda lines: len(blocks(lines, number)) == count, "a block")  # noqa: B023
                took[kind] = max(blocks(lines, number))
            # Discard the first block, which is a warm-up.
            if number:
                turns.append((took["fixed"], took["elastic"]))
        for kind in kinds:
            (places[kind] / "end").touch()
        ends = [job.end() for job in running]
    finally:
        for job in running:
            job.close()
    middle, low, high = ratio_of_turns(turns)
    options.figures["idle"] = turns
    step = seconds(quantile([fixed for fixed, _ in turns], 0.5))
    cell = (
        f"{(middle - 1) * 100:+.1f} % ({(low - 1) * 100:+.1f} to {(high - 1) * 100:+.1f}) of {step}, {len(turns)} turns"
    )
    return [row("elastic against fixed, step time", cell + ("" if not any(ends) else f"; exits {ends}"), "within 1 %")]


def blocks(lines: list[Line], number: int) -> list[float]:
    return [float(line.words[1]) for line in lines if line.what == "block" and line.number(0) == number]


# -- main program ------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Folder, Any], list[str]]] = {
    "kill": kill,
    "join": join,
    "many": many,
    "idle": idle,
}


def parts_named(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(PARTS)}, got {name!r}")
    return names


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--parts", type=parts_named, default=list(PARTS), help="some of them, with commas (default: all)")
    made.add_argument("--kills", type=int, default=20, help="kills of ranks of Horovod (default: %(default)s)")
    made.add_argument(
        "--peer-kills", type=int, default=3, help="kills of each peer (default: %(default)s; 0: no peers)"
    )
    made.add_argument("--state", type=int, default=GB, help="bytes that a newcomer gets (default: 1 GiB)")
    made.add_argument("--workers", type=int, default=64, help="processes of the part many (default: %(default)s)")
    made.add_argument("--repeats", type=int, default=1, help="repeats of the part many (default: %(default)s)")
    made.add_argument("--turns", type=int, default=20, help="rounds of the part idle (default: %(default)s)")
    made.add_argument(
        "--width", type=int, default=4096, help="width of the model of the part idle (default: %(default)s)"
    )
    made.add_argument("--seed", type=int, default=7, help="seed of random choices (default: %(default)s)")
    made.add_argument("--json", type=Path, help="file for all figures")
    return made


def main() -> None:
    options = parser().parse_args()
    options.figures, rows, failed = {}, [], False
    with jobs.folders() as folder:
        for name in options.parts:
            before = os.getloadavg()[0]
            try:
                rows += (of_part := PARTS[name](folder, options))
                # Print each result immediately. The table follows at the end of the run.
                print("\n".join(of_part), file=sys.stderr)
            except SystemExit as error:
                # Report the failure, but keep the results of the other parts.
                print(error, file=sys.stderr)
                rows.append(row(name, "failed", "-"))
                failed = True
            print(f"{name}: load {before:.1f} before, {os.getloadavg()[0]:.1f} after", file=sys.stderr, flush=True)
    print("\n".join(["| What | Figure | Goal |", "|---|---|---|", *rows]))
    print(f"\n{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} at the end")
    if options.json:
        options.json.write_text(json.dumps(options.figures, indent=1) + "\n")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
