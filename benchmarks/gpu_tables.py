"""Format results of benchmarks/gpu.py as Markdown, for its output and for benchmarks/RESULTS.md.

python benchmarks/gpu_tables.py benchmark.json [TABLE.txt]
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from cases import MIB, size_label

Seconds = dict[str, list[float]]
"""Median of each round, by alternative."""

COLUMNS = (
    "allreduce", "horovod, us", "gloo, us", "gloo / horovod", "call, us", "GB/s", "of bare copies", "of device memory",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
PASSES = 6
"""How many times each rank's bytes are read or written in device memory when ranks of one GPU reduce with CUDA IPC:
packing, reducing and unpacking, each with a read and a write."""


def microseconds(values: list[float]) -> str:
    middle, low, high = (1e6 * f(values) for f in (statistics.median, min, max))
    return f"{middle:,.0f} ({low:,.0f} - {high:,.0f})"


def share_of_memory(nbytes: int, seconds: float, run: dict[str, Any]) -> str:
    """Return an allreduce's memory traffic rate as a percentage of the rate of a copy within GPU memory, or ""."""
    rate = run["bare copies"].get("on the device", 0.0)
    if not run["by ipc"] or not rate or nbytes < 16 * MIB:
        return ""
    return f"{100 * PASSES * run['ranks'] * nbytes / seconds / rate:.0f} %"


def row(case: dict[str, Any], run: dict[str, Any]) -> str:
    nbytes, link = case["bytes"], run["bare copies"]["both at once"]
    horovod, gloo = (statistics.median(case[name]) for name in ("horovod", "gloo"))
    cells = [microseconds(case["horovod"]), microseconds(case["gloo"]), f"{gloo / horovod:.1f}x"]
    cells += [f"{1e6 * case['call']:,.0f}", f"{nbytes / horovod / 1e9:.2f}", f"{100 * nbytes / horovod / link:.0f} %"]
    return f"| {size_label(nbytes)} | {' | '.join(cells)} | {share_of_memory(nbytes, horovod, run)} |"


def copies(run: dict[str, Any]) -> str:
    rates = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in run["bare copies"].items())
    return f"bare copies, GB/s and rank: {rates}"


def allreduces(run: dict[str, Any]) -> str:
    return "\n".join([copies(run), "", HEAD, *(row(case, run) for case in run["seconds"])])


def steps(run: dict[str, Any]) -> str:
    lines = [run["model"], "", "| a step | us until it is done | us until the calls return |", "|---|---|---|"]
    for name in run["seconds"]:
        lines.append(f"| {name} | {microseconds(run['seconds'][name])} | {microseconds(run['calls'][name])} |")
    added = run["added, %"]
    lines += ["", f"the wrapper adds {statistics.median(added):+.2f} % ({min(added):+.2f} to {max(added):+.2f})"]
    return "\n".join(lines)


def continuations(run: dict[str, Any]) -> str:
    """Return a table of the time that the engine adds to the time of NCCL.

    Only the difference is meaningful, because two ranks share one GPU.
    """
    horovod, nccl = (run["seconds"][name] for name in ("horovod", "NCCL alone"))
    added = 1e6 * (statistics.median(horovod) - statistics.median(nccl))
    how = "by NCCL" if run["by nccl"] else "NOT by NCCL"
    head = f"| 4 KiB, until the stream goes on | horovod ({how}), us | NCCL alone, us | added, us |\n|---|---|---|---|"
    return f"{head}\n| allreduce | {microseconds(horovod)} | {microseconds(nccl)} | {added:+,.0f} |"


TABLES = {"allreduce": allreduces, "optimizer": steps, "continuation": continuations}


def document(found: dict[str, Any], results: str = "") -> str:
    """Return the results as Markdown. ``results`` is the table from scripts/gpu-check.sh, included unchanged."""
    lines = []
    for label, run in found.items():
        if not lines:
            lines += [f"## On a GPU: {run['device']}, {run['date']}", "", run["versions"], ""]
        ranks = "1 rank" if run["ranks"] == 1 else f"{run['ranks']} ranks"
        lines += [f"### {label}: {ranks}", "", TABLES[run["part"]](run), ""]
    if results:
        lines += ["### Checks", "", "```", results.rstrip(), "```", ""]
    return "\n".join(lines)


def main() -> None:
    found = json.loads(Path(sys.argv[1]).read_text())
    print(document(found, Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else ""), end="")


if __name__ == "__main__":
    main()
