"""Formats predictions as text, JSON and plots, and compares them with measured steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from horovod.planner.predict import Prediction
from horovod.planner.units import show_bandwidth, show_bytes, show_time


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as lines with aligned columns. The first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def render(predictions: Sequence[Prediction], price: float | None = None) -> str:
    """Format all predictions as a table.

    If there is only one prediction, its breakdown and the effects of changes follow the table.

    Args:
        predictions: Predictions for the same model.
        price: Price of one worker per hour, or None to omit costs.
    """
    first = predictions[0]
    parts = [f"{first.model}, batch {first.batch} per worker, {show_time(first.single)} per step on one worker"]
    parts.append(table(_rows(predictions, price)))
    if len(predictions) == 1:
        parts.append(_breakdown(first))
        if first.variants:
            heading = ["Change", "Efficiency", "Samples/s"]
            rows = [[name, f"{e:.1%}", f"{rate:,.0f}"] for name, (e, rate) in first.variants.items()]
            parts.append(table([heading, *rows]))
    notes = dict.fromkeys(note for prediction in predictions for note in prediction.extrapolates)
    if notes:
        parts.append("\n".join(f"Extrapolated: {note}." for note in notes))
    return "\n\n".join(parts) + "\n"


def _rows(predictions: Sequence[Prediction], price: float | None) -> list[list[str]]:
    dataset = predictions[0].dataset > 0
    heading = ["Hosts x workers", "Bandwidth", "Step", "Efficiency", "Samples/s"]
    heading += ["Epochs/h"] if dataset else []
    if price is not None:
        heading += ["Cost/h", "Cost/epoch"] if dataset else ["Cost/h"]
    rows = [[*heading, "Limit"]]
    for p in predictions:
        row = [f"{p.layout.nodes} x {p.layout.per_node}", show_bandwidth(p.network.bandwidth)]
        row += [show_time(p.step.seconds), f"{p.efficiency:.1%}", f"{p.throughput:,.0f}"]
        row += [f"{p.epochs_per_hour:.3g}"] if p.epochs_per_hour else []
        if price is not None:
            row.append(f"{price * p.layout.workers:,.2f}")
            row += [f"{price * p.layout.workers / p.epochs_per_hour:,.2f}"] if p.epochs_per_hour else []
        rows.append([*row, p.limit])
    return rows


def _breakdown(p: Prediction) -> str:
    step = p.step
    rows = [["Part of the step", "Time", "Share"]]
    for name, seconds in breakdown(p).items():
        if seconds > 0:
            rows.append([name, show_time(seconds), f"{seconds / step.seconds:.1%}"])
    text = table(rows)
    if step.operations:
        text += (
            f"\n\nCommunication: {show_time(step.communication)} in {step.operations} operations of together "
            f"{show_bytes(step.nbytes)} ({', '.join(step.algorithms)}), of which {show_time(step.hidden)} overlap "
            "with computation."
        )
    return text


def breakdown(p: Prediction) -> dict[str, float]:
    """Return the breakdown of a step in seconds. The parts add up to the step's duration."""
    step = p.step
    return {
        **p.phases,
        "computation beside communication": step.overhead,
        "waiting for the slowest worker": step.stragglers,
        "exposed communication": step.exposed,
    }


def to_json(predictions: Sequence[Prediction], price: float | None = None) -> str:
    """Format the predictions as JSON. Keys end with the unit of their value, except for ratios and counts."""
    return json.dumps([_as_dict(p, price) for p in predictions], indent=1) + "\n"


def _as_dict(p: Prediction, price: float | None) -> dict[str, Any]:
    hourly = None if price is None else price * p.layout.workers
    return {
        "model": p.model,
        "nodes": p.layout.nodes,
        "workers_per_node": p.layout.per_node,
        "workers": p.layout.workers,
        "batch_per_worker": p.batch,
        "bandwidth_bytes_per_second": p.network.bandwidth,
        "latency_seconds": p.network.latency,
        "algorithm": p.settings.algorithm,
        "compression": p.settings.compression,
        "local_steps": p.settings.local_steps,
        "step_seconds": p.step.seconds,
        "single_worker_step_seconds": p.single,
        "efficiency": p.efficiency,
        "samples_per_second": p.throughput,
        "epochs_per_hour": p.epochs_per_hour,
        "cost_per_hour": hourly,
        "cost_per_epoch": hourly / p.epochs_per_hour if hourly is not None and p.epochs_per_hour else None,
        "limit": p.limit,
        "ceilings": p.ceilings,
        "breakdown_seconds": breakdown(p),
        "communication_seconds": p.step.communication,
        "hidden_seconds": p.step.hidden,
        "operations": p.step.operations,
        "wire_bytes": p.step.nbytes,
        "algorithms_used": p.step.algorithms,
        "changes": {name: {"efficiency": e, "samples_per_second": rate} for name, (e, rate) in p.variants.items()},
        "extrapolates": p.extrapolates,
    }


# The functions below compare a prediction with rank 0's ``hvd.stats()`` from a run.

_SMALL = 0.05
"""Fraction of the step's duration below which a difference is not reported as a deviation."""


def read_statistics(path: Path) -> dict[str, Any]:
    """Read statistics from a JSON file with a result of ``hvd.stats()``, or from a ``--stats-file``.

    Raises:
        ValueError: If the file has neither format.
        OSError: If the file cannot be read.
    """
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    for text in ("\n".join(lines), lines[-1] if lines else ""):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    raise ValueError(f"{path} must contain hvd.stats() of rank 0 as JSON, or what --stats-file writes")


def measured_parts(stats: Mapping[str, Any]) -> dict[str, float]:
    """Return the measured seconds of each part of a step.

    The values are means over all ranks if the statistics contain these, and the values of one rank otherwise.

    Raises:
        ValueError: If the statistics contain no measured step.
    """
    job = stats.get("job")
    found = job if isinstance(job, Mapping) and job.get("step_seconds") else stats
    names = {"data": "data_seconds", "computation": "compute_seconds", "exposed communication": "exposed_seconds"}
    if not isinstance(found.get("step_seconds"), (int, float)) or found["step_seconds"] <= 0:
        raise ValueError("the statistics must contain `step_seconds` above 0: did the run make more than three steps?")
    parts = {part: float(found.get(name) or 0.0) for part, name in names.items()}
    return {
        **parts,
        "step": float(found["step_seconds"]),
        "hidden communication": float(found.get("hidden_seconds") or 0.0),
    }


def predicted_parts(p: Prediction) -> dict[str, float]:
    """Return the predicted breakdown of a step, with the same parts as ``measured_parts``.

    The wait for the slowest rank counts as communication, because ranks of a measured run wait for each other in
    collectives.
    """
    step = p.step
    computation = p.single - p.phases["data"] + step.overhead
    return {
        "data": p.phases["data"],
        "computation": computation,
        "exposed communication": step.exposed + step.stragglers,
        "step": step.seconds,
        "hidden communication": step.hidden,
    }


def render_comparison(p: Prediction, stats: Mapping[str, Any]) -> str:
    """Format predicted and measured times as a table, with a sentence about the largest difference."""
    plan, reality = predicted_parts(p), measured_parts(stats)
    rows = [["", "Predicted", "Measured", "Difference", "Of the step"]]
    for part, seconds in plan.items():
        difference = reality[part] - seconds
        rows.append(
            [
                part,
                show_time(seconds),
                show_time(reality[part]),
                _signed(difference),
                f"{difference / plan['step']:+.1%}",
            ]
        )
    parts = {name: reality[name] - plan[name] for name in ("data", "computation", "exposed communication")}
    worst = max(parts, key=lambda name: abs(parts[name]))
    heading = f"{p.model}, {p.layout.nodes} x {p.layout.per_node} workers, batch {p.batch} per worker"
    if abs(parts[worst]) < _SMALL * plan["step"]:
        conclusion = f"The run is as planned: no part differs by more than {_SMALL:.0%} of the step."
    else:
        conclusion = (
            f"The largest difference is {worst}: {_signed(parts[worst])} per step. {_HINTS[worst, parts[worst] > 0]}"
        )
    return f"{heading}\n\n{table(rows)}\n\n{conclusion}\n"


_HINTS = {
    ("data", True): "Workers wait longer for their data than when the profile was recorded; see docs/slow.md.",
    ("data", False): "Workers wait less for their data than when the profile was recorded.",
    ("computation", True): "Workers compute more slowly than in the profile: another device, batch, or too few cores.",
    ("computation", False): "Workers compute faster than in the profile: another device or batch.",
    ("exposed communication", True): "The network is slower than assumed, or ranks wait for a late one; calibrate it.",
    ("exposed communication", False): "The network is faster than assumed; calibrate it.",
}


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "+") + show_time(abs(seconds))


NO_MATPLOTLIB = "no plot: matplotlib is not installed (pip install 'horovod[benchmark]')"


def draw_plot(lines: Mapping[str, Sequence[Prediction]], path: Path) -> str:
    """Draw predictions as lines and write the plot to a file.

    Args:
        lines: For each label, predictions for increasing numbers of workers.
        path: PNG or SVG file to write.

    Returns:
        str: Sentence that names the file, or the reason why no file was written.
    """
    if not find_spec("matplotlib"):
        return NO_MATPLOTLIB
    import matplotlib

    matplotlib.use("Agg")  # the Agg backend works without a display
    from matplotlib import pyplot

    # Keep text as text in SVG files, and make the output reproducible.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "horovod"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for label, predictions in lines.items():
        workers = [p.layout.workers for p in predictions]
        left.plot(workers, [p.throughput for p in predictions], marker="o", markersize=3, label=label)
        right.plot(workers, [100 * p.efficiency for p in predictions], marker="o", markersize=3, label=label)
    longest = max(lines.values(), key=len)
    ideal = [p.layout.workers * p.batch / p.single for p in longest]
    left.plot([p.layout.workers for p in longest], ideal, color="gray", linestyle=":", label="ideal")
    left.set_ylabel("samples/s")
    left.set_yscale("log", base=10)
    right.set_ylabel("efficiency, %")
    right.set_ylim(0, 105)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("workers")
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize="small")
    figure.suptitle(f"{longest[0].model}, batch {longest[0].batch} per worker")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return f"plot: {path}"
