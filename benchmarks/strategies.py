"""Compare training strategies with equal sample budgets: loss, bytes, staleness, and time on slow links.

    python benchmarks/strategies.py [--task digits] [--np 4] [--seeds 3] [--samples 60000] [--plot strategies]

Runs examples/strategies/compare.py for each seed with all ranks at full speed, and once with rank 1 at half speed, and
prints Markdown tables. Losses and staleness are measured. **Bytes and times on links are calculated**
(`cost`): all ranks share this machine's memory, so the tables add to the measured compute time of a step the time that
its bytes and messages would take on each link (`LINKS`). Nothing is overlapped in this calculation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/strategies/compare.py"
LINKS = {"10 Gbit/s": (1.25e9, 50e-6), "1 Gbit/s": (1.25e8, 100e-6), "100 Mbit/s, 20 ms": (1.25e7, 20e-3)}
"""Bytes per second in each direction, and seconds per message."""


@dataclass(frozen=True)
class Cost:
    """Average bytes that the busiest rank sends per step, and number of messages that follow one another."""

    sent: float
    messages: float


def cost(strategy: str, size: int, ranks: int, every: int) -> Cost:
    """Return the cost of a step.

    Args:
        strategy: Name of a strategy in the example.
        size: Bytes of the parameters.
        ranks: Number of ranks, including the server of a parameter server.
        every: Steps between exchanges, for strategies that do not exchange in every step.
    """
    allreduce = Cost(2 * (ranks - 1) / ranks * size, 2 * (ranks - 1))
    server = Cost((ranks - 1) * size, 2)  # the server's link carries the values of all workers
    seldom = {"local": allreduce, "diloco": allreduce, "easgd": server}
    if strategy in seldom:
        return Cost(seldom[strategy].sent / every, seldom[strategy].messages / every)
    return {"sync": allreduce, "gossip": Cost(size, 1), "ps": server, "async": server}[strategy]


def seconds(one: Cost, link: tuple[float, float], compute: float) -> float:
    """Return the seconds of a step that first computes and then communicates."""
    rate, latency = link
    return compute + one.sent / rate + one.messages * latency


def run(seed: int, slow: int, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run one job and return its results by strategy, or read them from the folder ``--results``.

    Raises subprocess errors if the job fails or takes longer than ``--timeout`` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.results or folder) / f"{args.task}-{seed}-{slow}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = ["--task", args.task, "--seed", seed, "--slow", slow, "--json", path]
            flags += ["--samples", args.samples, "--every", args.every, "--batch", args.batch]
            command = [sys.executable, "-m", "horovod.runner", "-np", args.np, sys.executable, EXAMPLE, *flags]
            subprocess.run([str(part) for part in command], check=True, timeout=args.timeout, stdout=subprocess.DEVNULL)
        return {one["strategy"]: one for one in json.loads(path.read_text())}


def table(rows: list[list[str]]) -> str:
    """Format rows as a Markdown table. The first row is the header."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def report(
    results: dict[str, list[dict[str, Any]]], slowed: dict[str, dict[str, Any]], args: argparse.Namespace
) -> str:
    """Return all tables as Markdown text."""
    # Synchronous training communicates during the backward pass. So take the computation time from a strategy that
    # communicates separately.
    compute = statistics.median(one["busy"] / one["steps"] for one in results["local"])
    head = ["strategy", "steps", "held-out loss", "spread", "KB a step", *(f"s on {link}" for link in LINKS)]
    rows = [head]
    for strategy, runs in results.items():
        losses = [one["loss"] for one in runs]
        each = cost(strategy, 4 * runs[0]["parameters"], args.np, args.every)
        steps = runs[0]["steps"]
        times = [f"{steps * seconds(each, link, compute):.1f}" for link in LINKS.values()]
        spread = f"{min(losses):.4f} to {max(losses):.4f}"
        rows.append([strategy, str(steps), f"{statistics.mean(losses):.4f}", spread, f"{each.sent / 1e3:.1f}", *times])
    text = f"{args.task}, {args.np} ranks, {args.samples} samples, {compute * 1e3:.2f} ms of compute a step\n\n"
    text += table(rows) + "\n\nRank 1 at half speed (measured on this machine):\n\n"
    rows = [["strategy", "held-out loss", "seconds", "seconds at full speed", "updates by staleness"]]
    for strategy, one in slowed.items():
        staleness = ", ".join(f"{k}: {v}" for k, v in one["staleness"].items())
        full = statistics.median(r["seconds"] for r in results[strategy])
        rows.append([strategy, f"{one['loss']:.4f}", f"{one['seconds']:.1f}", f"{full:.1f}", staleness or "-"])
    return text + table(rows)


def plot(results: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> None:
    """Draw the held-out loss of rank 0 over samples, and over bytes sent by the busiest rank."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for strategy, runs in results.items():
        samples, losses = zip(*runs[0]["curve"], strict=True)
        each = cost(strategy, 4 * runs[0]["parameters"], args.np, args.every).sent
        share = runs[0]["steps"] / runs[0]["curve"][-1][0]
        axes[0].plot(samples, losses, label=strategy)
        axes[1].plot([each * share * n / 1e6 for n in samples], losses, label=strategy)
    axes[0].set(xlabel="samples", ylabel="held-out loss", yscale="log")
    axes[1].set(xlabel="MB sent by the busiest rank", xscale="log")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(f"{args.plot}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("digits", "chars"), default="digits")
    parser.add_argument("--np", type=int, default=4, help="ranks (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each strategy (default %(default)s)")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one job (default %(default)s)")
    parser.add_argument("--results", help="folder that keeps the results of jobs; those that it has are not run again")
    parser.add_argument("--plot", help="draw the curves to PLOT.svg; needs matplotlib")
    args = parser.parse_args()
    runs = [run(seed, -1, args) for seed in range(1, args.seeds + 1)]
    results = {strategy: [one[strategy] for one in runs] for strategy in runs[0]}
    print(report(results, run(1, 1, args), args))
    if args.plot:
        plot(results, args)


if __name__ == "__main__":
    main()
