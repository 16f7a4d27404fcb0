"""Compare training strategies with equal sample budgets: loss, bytes, staleness, and time on slow links.

    python benchmarks/strategies.py [--task digits] [--np 4] [--seeds 3] [--samples 60000] [--links] [--plot strategies]

Runs examples/strategies/compare.py for each seed with all ranks at full speed, and once with rank 1 at half speed, and
prints Markdown tables. Losses and staleness are measured, the bytes of a step are calculated (`cost`). With ``--links``
the job of the first seed also runs on simulated hosts (namespaces.py) with one rank each, joined by each of `LINKS`,
and all its times are measured. Without it, the times on links are calculated: the compute time of a step, plus what its
bytes and messages take without any overlap.
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

import namespaces
from planner import run as run_on_hosts

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/strategies/compare.py"
LINKS = {"10 Gbit/s": (1.25e9, 50e-6), "1 Gbit/s": (1.25e8, 100e-6), "100 Mbit/s, 20 ms": (1.25e7, 20e-3)}
"""Bytes per second in each direction, and seconds per message. Those below 1 ms are not simulated."""


@dataclass(frozen=True)
class Cost:
    """Communication cost of a step: average bytes that the busiest rank sends, and number of sequential messages."""

    sent: float
    messages: float


def cost(strategy: str, size: int, ranks: int, every: int) -> Cost:
    """Return the communication cost of one step with a strategy.

    Args:
        strategy: Name of a strategy in the example.
        size: Bytes of the parameters.
        ranks: Number of ranks, including the server of a parameter server.
        every: Steps between exchanges, for strategies that do not exchange in every step.
    """
    allreduce = Cost(2 * (ranks - 1) / ranks * size, 2 * (ranks - 1))
    # The busiest rank is the parameter server, whose link carries the values of every worker.
    server = Cost((ranks - 1) * size, 2)
    seldom = {"local": allreduce, "diloco": allreduce, "easgd": server}
    if strategy in seldom:
        return Cost(seldom[strategy].sent / every, seldom[strategy].messages / every)
    return {"sync": allreduce, "gossip": Cost(size, 1), "ps": server, "async": server}[strategy]


def seconds(one: Cost, link: tuple[float, float], compute: float) -> float:
    """Return the duration in seconds of a step that computes first and then communicates."""
    rate, latency = link
    return compute + one.sent / rate + one.messages * latency


def run(seed: int, slow: int, args: argparse.Namespace, link: str = "") -> dict[str, dict[str, Any]]:
    """Run one job on this host or on simulated hosts, and return its results by strategy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        flags = ["--task", args.task, "--seed", seed, "--slow", slow, "--json", path]
        flags += ["--samples", args.samples, "--every", args.every, "--batch", args.batch]
        program = [sys.executable, *map(str, [EXAMPLE, *flags])]
        if link:
            rate, latency = LINKS[link]
            delay_ms = latency * 1e3 if latency >= 1e-3 else 0.0
            with namespaces.Hosts(args.np, rate * 8e-6, incoming=True, delay_ms=delay_ms) as hosts:
                run_on_hosts(hosts, args.np, program, Path(folder), args.timeout, {})
        else:
            command = [sys.executable, "-m", "horovod.runner", "-np", str(args.np), *program]
            subprocess.run(command, check=True, timeout=args.timeout, stdout=subprocess.DEVNULL)
        return {one["strategy"]: one for one in json.loads(path.read_text())}


def table(rows: list[list[str]]) -> str:
    """Format rows as a Markdown table, whose first row is the header."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def report(
    results: dict[str, list[dict[str, Any]]],
    slowed: dict[str, dict[str, Any]],
    on_links: dict[str, dict[str, dict[str, Any]]],
    args: argparse.Namespace,
) -> str:
    """Return all tables as Markdown. ``on_links`` contains the results measured on each link."""
    # Synchronous training communicates during the backward pass, so take the computation time from a strategy that
    # communicates separately.
    compute = statistics.median(one["busy"] / one["steps"] for one in results["local"])
    head = ["strategy", "steps", "held-out loss", "spread", "KB a step", *(f"s on {link}" for link in LINKS)]
    rows = [head]
    for strategy, runs in results.items():
        losses = [one["loss"] for one in runs]
        each = cost(strategy, 4 * runs[0]["parameters"], args.np, args.every)
        steps = runs[0]["steps"]
        calculated = {name: steps * seconds(each, link, compute) for name, link in LINKS.items()}
        times = [f"{on_links[name][strategy]['seconds'] if on_links else calculated[name]:.1f}" for name in LINKS]
        spread = f"{min(losses):.4f} to {max(losses):.4f}"
        rows.append([strategy, str(steps), f"{statistics.mean(losses):.4f}", spread, f"{each.sent / 1e3:.1f}", *times])
    text = f"{args.task}, {args.np} ranks, {args.samples} samples, {compute * 1e3:.2f} ms of compute a step\n\n"
    text += table(rows) + f"\n\nTimes on links are {'measured' if on_links else 'calculated'}.\n\n"
    text += "Rank 1 at half speed (measured on this machine):\n\n"
    rows = [["strategy", "held-out loss", "seconds", "seconds at full speed", "updates by staleness"]]
    for strategy, one in slowed.items():
        staleness = ", ".join(f"{k}: {v}" for k, v in one["staleness"].items())
        full = statistics.median(r["seconds"] for r in results[strategy])
        rows.append([strategy, f"{one['loss']:.4f}", f"{one['seconds']:.1f}", f"{full:.1f}", staleness or "-"])
    return text + table(rows)


def plot(
    results: dict[str, list[dict[str, Any]]],
    slowed: dict[str, dict[str, Any]],
    on_links: dict[str, dict[str, dict[str, Any]]],
    args: argparse.Namespace,
) -> None:
    """Plot the held-out loss of the first seed against samples, bytes sent by the busiest rank, and seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    link = list(LINKS)[-1]
    figure, axes = pyplot.subplots(1, 4 if on_links else 3, figsize=(16 if on_links else 12, 4), sharey=True)
    for strategy, runs in results.items():
        first = runs[0]
        samples, losses, _ = zip(*first["curve"], strict=True)
        sent = cost(strategy, 4 * first["parameters"], args.np, args.every).sent * first["steps"] / samples[-1]
        axes[0].plot(samples, losses, label=strategy)
        axes[1].plot([sent * n / 1e6 for n in samples], losses)
        for axis, one in zip(axes[2:], [slowed, *([on_links[link]] if on_links else [])], strict=True):
            axis.plot(*list(zip(*one[strategy]["curve"], strict=True))[:0:-1])
    axes[0].set(xlabel="samples", ylabel="held-out loss", yscale="log")
    axes[1].set(xlabel="MB sent by the busiest rank", xscale="log")
    axes[2].set(xlabel="seconds, rank 1 at half speed")
    if on_links:
        axes[3].set(xlabel=f"seconds, {link}", xscale="log")
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
    parser.add_argument("--links", action="store_true", help="measure the times on links; needs root, iproute2 and cc")
    parser.add_argument("--plot", help="draw the curves to PLOT.svg; needs matplotlib")
    args = parser.parse_args()
    if args.links and (why := namespaces.missing()):
        sys.exit(f"benchmarks/strategies.py: {why}")
    runs = [run(seed, -1, args) for seed in range(1, args.seeds + 1)]
    results = {strategy: [one[strategy] for one in runs] for strategy in runs[0]}
    slowed = run(1, 1, args)
    on_links = {link: run(1, -1, args, link) for link in LINKS} if args.links else {}
    print(report(results, slowed, on_links, args))
    if args.plot:
        plot(results, slowed, on_links, args)


if __name__ == "__main__":
    main()
