"""Random faults for elastic.py, injected into one job after another.

A job can end correctly in two ways. Either a rank is asked to stop after the faults, and the parameters equal those
that one process computes for the same steps and sizes. Or the faults kill all workers that have the state, and the
launcher reports this.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import elastic_jobs as jobs
from elastic_figures import Line, chaos_report, row, seconds
from report import quantile

RANKS = 4
HOSTS = {"one host": f"localhost:{RANKS}", "four hosts": "\n".join(f"127.0.0.{n + 1}:1" for n in range(RANKS))}
NO_STATE = "no worker is left that holds the state"


@dataclass
class Ended:
    """Result of a job with faults.

    ``how`` is "equal", "no state left", or a description of the error.
    """

    seed: int
    where: str
    how: str
    events: int = 0
    kinds: str = ""
    recovered: int = 0
    p50: float | None = None
    longest: float | None = None
    steps: int = 0
    ranks: int = 0
    apart: float = 0.0
    processes: int = 0
    segments: int = 0


def chaos(folder: Callable[[str], Path], options: argparse.Namespace) -> list[str]:
    ended: list[Ended] = []
    while sum(one.events for one in ended) < options.faults:
        number = len(ended)
        ended.append(one_job(folder("chaos"), options, options.seed + number, list(HOSTS)[number % 2]))
        print(f"chaos: {ended[-1]}", file=sys.stderr, flush=True)
        if not ended[-1].events:
            break
    options.figures["chaos"] = [vars(one) for one in ended]
    return rows(ended)


def one_job(folder: Path, options: argparse.Namespace, seed: int, where: str) -> Ended:
    lasts = options.faults_a_job * options.mtbf
    plan = f"seed={seed} mtbf={options.mtbf}s kinds={options.kinds} until={lasts}s"
    flags = ["-np", str(RANKS), "--min-np", "1", "--max-np", str(RANKS), "--chaos", plan, "--chaos-report"]
    command = jobs.worker("horovod", folder, "--check", "--pause", "0.05")
    before = segments()
    job = jobs.ours(folder, command, HOSTS[where], flags, {"HOROVOD_HEARTBEAT_TIMEOUT": "4"})
    made = Ended(seed, where, "hung")
    try:
        over = time.monotonic() + lasts + 30
        while time.monotonic() < over and not job.is_over():
            time.sleep(0.5)
        if not job.is_over():
            os.kill(one_that_trains(job), signal.SIGTERM)
        # Seconds for each rank to recompute all steps.
        code = job.end(60 + lasts)
        judge(made, job, code)
    except (subprocess.TimeoutExpired, SystemExit) as error:
        made.how = f"hung: {error}"
    finally:
        made.processes = len(job.close())
        made.segments = len(segments() - before)
    return made


def one_that_trains(job: jobs.Job) -> int:
    """Wait until any worker has done a few steps, and return its process id."""
    found: set[int] = set()

    def trains(lines: list[Line]) -> bool:
        alive = job.processes()
        found.update(line.pid for line in lines if line.what == "step" and line.pid in alive)
        return bool(found)

    job.until(trains, "a worker that trains")
    return min(found)


def judge(made: Ended, job: jobs.Job, code: int) -> None:
    ends = [json.loads(line.words[0]) for line in job.lines() if line.what == "ends"]
    log = job.log()
    if report := chaos_report(log):
        made.events, made.kinds, made.recovered = report.events, report.kinds, report.recovered
        made.p50, made.longest = report.p50, report.longest
    made.ranks, made.steps = len(ends), ends[0][3] if ends else 0
    made.apart = max((apart for _, apart, _, _ in ends), default=0.0)
    if code == 0 and ends and all(same for same, *_ in ends) and len({bits for _, _, bits, _ in ends}) == 1:
        made.how = "equal"
    elif code != 0 and NO_STATE in log:
        made.how = "no state left"
    else:
        made.how = f"WRONG: exit code {code}, {ends}, {log[-1500:]}"


def segments() -> set[str]:
    return set(os.listdir("/dev/shm"))


def rows(ended: list[Ended]) -> list[str]:
    hows = Counter(one.how if one.how in ("equal", "no state left") else "wrong or hung" for one in ended)
    kinds: Counter[str] = Counter()
    for one in ended:
        for part in filter(None, one.kinds.split(", ")):
            count, kind = part.split()
            kinds[kind] += int(count)
    p50 = [one.p50 for one in ended if one.p50 is not None]
    longest = max((one.longest or 0 for one in ended), default=0.0)
    times = f", p50 {seconds(quantile(p50, 0.5))} (of the jobs' p50), longest {seconds(longest)}" if p50 else ""
    events, steps = sum(one.events for one in ended), sum(one.steps for one in ended)
    figure = (
        f"{events} ({', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}) in {len(ended)} jobs, "
        f"{sum(one.recovered for one in ended)} recovered from{times}; parameters equal in {hows['equal']} jobs of "
        f"{steps} steps, at most {max((one.apart for one in ended), default=0):.1g} apart; no state left in "
        f"{hows['no state left']}; wrong or hung {hows['wrong or hung']}; left behind: "
        f"{sum(one.processes for one in ended)} processes, {sum(one.segments for one in ended)} segments"
    )
    return [row("random faults", figure, "0 hangs, 0 wrong, 0 left")]
