"""Formatting of predictions as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from horovod.planner.predict import Prediction
from horovod.planner.units import show_bandwidth, show_bytes, show_time


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows, of which the first is the heading, as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def render(predictions: Sequence[Prediction], price: float | None = None) -> str:
    """Return a table of all predictions.

    If there is only one prediction, its breakdown and the effects of changes follow.

    Args:
        predictions: Predictions for the same model.
        price: Price of one worker per hour, or None to leave out costs.
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
    """Return the seconds of each part of the step. They add up to the duration of the step."""
    step = p.step
    return {
        **p.phases,
        "computation beside communication": step.overhead,
        "waiting for the slowest worker": step.stragglers,
        "exposed communication": step.exposed,
    }


def to_json(predictions: Sequence[Prediction], price: float | None = None) -> str:
    """Return the predictions as JSON. The keys of numbers, except for ratios and counts, end with the unit."""
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
