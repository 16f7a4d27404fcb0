"""Measure the cost of negotiation for 2 to 1,024 ranks: messages, bytes and CPU time.

    scripts/unit-tests.sh build/unit "" && python benchmarks/control.py [--most 1024] [--json FILE] [--plot NAME.svg]

Runs engine/control_bench.cc for each case: engines in one process on simulated hosts, whose operations move no data.
Counts are exact. CPU times are those of rank 0's two threads (program and engine). The time of a step is for all ranks
together on this machine's cores, and does not apply to a cluster. docs/performance.md explains the results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[1] / "build" / "unit" / "benchmarks" / "engine" / "control_bench"
TENSORS = 32
# Maximum seconds per case.
PATIENCE = 300
PER_HOST = (8, 1)
ROLES = ("rank0", "first_of_host", "last")
Figures = dict[str, Any]


def delays(ranks: int, per_host: int, schedules: bool) -> int:
    """Return the number of sequential messages needed before all ranks know that an operation can start."""
    hosts = -(-ranks // per_host)
    if schedules and hosts == 1:
        # Ranks on a single host write their readiness votes to shared memory and send no messages.
        return 1
    if schedules and per_host == 1:
        return (ranks - 1).bit_length()
    # Each rank sends its message to the first rank of its host, which forwards it to rank 0. The reply returns by the
    # same route.
    return 2 if hosts == 1 or per_host == 1 else 4


def steps_for(ranks: int) -> int:
    return max(20, min(400, 6400 // ranks))


def measure(program: Path, ranks: int, per_host: int, schedules: bool, tensors: int = TENSORS) -> Figures:
    """Run one case and return its results. Raises CalledProcessError or TimeoutExpired."""
    command = [str(program), *map(str, (ranks, per_host, int(schedules), tensors, steps_for(ranks)))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    found: Figures = json.loads(done.stdout)
    return found


def middle(runs: Sequence[Figures]) -> Figures:
    """Combine the results of several runs of one case, by taking medians."""
    found: Figures = {}
    for name, first in runs[0].items():
        if isinstance(first, dict):
            found[name] = middle([run[name] for run in runs])
        elif isinstance(first, bool):
            found[name] = first
        else:
            found[name] = statistics.median_low(run[name] for run in runs)
    return found


def busy(role: Figures) -> float:
    """Return one rank's CPU time per step, in microseconds."""
    return float(role["engine_us"] + role["program_us"])


def of_root(case: Figures, method: str) -> float:
    """Return how many messages or bytes rank 0 sends or receives per step, including readiness votes.

    ``way`` is "sent", "received", "sent_bytes" or "received_bytes". Votes have the same cost on all ranks; see
    engine/schedule_sync.h.
    """
    votes = case["vote_bytes"] if method.endswith("bytes") else case["votes"]
    return float(case["rank0"][method] + votes / case["ranks"])


def table(cases: Iterable[Figures]) -> list[str]:
    """Return a Markdown table, as lines, with one row per case."""
    lines = [
        "| ranks | hosts | schedules | rank 0: messages in, out | KiB in, out | CPU ms | other ranks: CPU ms |"
        " messages of all | one after another | start: an engine, first step |",
        "|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for c in cases:
        per_host = round(c["ranks"] / c["hosts"])
        root, rest = c["rank0"], busy(c["last"])
        lines.append(
            f"| {c['ranks']:,} | {c['hosts']:,} | {'yes' if c['schedules'] else 'no'}"
            f" | {of_root(c, 'received'):,.0f}, {of_root(c, 'sent'):,.0f}"
            f" | {of_root(c, 'received_bytes') / 1024:,.1f}, {of_root(c, 'sent_bytes') / 1024:,.1f}"
            f" | {busy(root) / 1000:.2f} | {rest / 1000:.2f} | {c['messages'] + c['votes']:,.0f}"
            f" | {delays(c['ranks'], per_host, c['schedules'])}"
            f" | {c['engine_cpu_us'] / 1000:.2f} ms, {c['first_step_s']:.3f} s |"
        )
    return lines


def draw(cases: Sequence[Figures], path: Path) -> None:
    """Plot messages, bytes and CPU time of rank 0 against the number of ranks."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "horovod"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    panels = (
        ("messages of rank 0 a step", lambda c: of_root(c, "received") + of_root(c, "sent")),
        ("KiB of rank 0 a step", lambda c: (of_root(c, "received_bytes") + of_root(c, "sent_bytes")) / 1024),
        ("CPU ms of rank 0 a step", lambda c: busy(c["rank0"]) / 1000),
    )
    styles = {
        (8, False): ("tab:red", "o", "8 ranks a host, negotiated"),
        (8, True): ("tab:blue", "o", "8 ranks a host, schedule"),
        (1, False): ("tab:orange", "s", "1 rank a host, negotiated"),
        (1, True): ("tab:cyan", "s", "1 rank a host, schedule"),
    }
    for axis, (title, value) in zip(axes, panels, strict=True):
        for (per_host, schedules), (color, marker, label) in styles.items():
            line = [(c["ranks"], value(c)) for c in cases if c["per_host"] == per_host and c["schedules"] == schedules]
            axis.plot(*zip(*line, strict=True), color=color, marker=marker, markersize=4, label=label)
        axis.set(title=title, xlabel="ranks", xscale="log", yscale="symlog" if "CPU" not in title else "log")
        axis.set_xticks([2, 8, 32, 128, 1024], ["2", "8", "32", "128", "1,024"], minor=False)
        axis.minorticks_off()
        axis.set_ylim(bottom=None if "CPU" in title else -0.3)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="What agreeing costs as the world grows.")
    parser.add_argument("--most", type=int, default=1024, help="ranks of the largest world (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (default %(default)s)")
    parser.add_argument("--program", type=Path, default=PROGRAM, help="control_bench (default %(default)s)")
    parser.add_argument("--json", type=Path, help="also writes all figures to this file")
    parser.add_argument("--plot", type=Path, help="draws them; needs matplotlib")
    args = parser.parse_args()
    if not args.program.exists():
        sys.exit(f"{args.program} is not there; scripts/unit-tests.sh build/unit '' builds it")
    sizes = [2**i for i in range(1, args.most.bit_length()) if 2**i <= args.most]
    keys = [(ranks, per_host, schedules) for ranks in sizes for per_host in PER_HOST for schedules in (False, True)]
    runs: dict[tuple[int, int, bool], list[Figures]] = {key: [] for key in keys}
    for _ in range(args.repeats):
        for key in keys:
            runs[key].append(measure(args.program, *key))
    cases = [{**middle(found), "per_host": key[1]} for key, found in runs.items()]
    print("\n".join(table(cases)))
    print(f"\nMedians of {args.repeats} runs, {TENSORS} tensors a step; {os.cpu_count()} cores")
    if args.json:
        args.json.write_text(json.dumps({"tensors": TENSORS, "cases": cases}, indent=1))
    if args.plot:
        draw(cases, args.plot)


if __name__ == "__main__":
    main()
