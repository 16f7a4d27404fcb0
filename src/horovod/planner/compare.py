"""Comparison of a prediction with the statistics of a run, ``hvd.stats()`` of rank 0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horovod.planner import report
from horovod.planner.predict import Prediction
from horovod.planner.units import show_time

_SMALL = 0.05
"""Fraction of the step's duration below which a difference is not reported as a deviation."""


def read(path: Path) -> dict[str, Any]:
    """Read statistics from a file that holds ``hvd.stats()`` as JSON, or that ``--stats-file`` wrote.

    Raises:
        ValueError: If the file has neither format.
        OSError: If it cannot be read.
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


def figures(stats: Mapping[str, Any]) -> dict[str, float]:
    """Return the measured seconds of each part of a step.

    Uses the means over all ranks if the statistics contain them, and otherwise the values of the rank.

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


def predicted(p: Prediction) -> dict[str, float]:
    """Return the predicted seconds of the parts of a step that ``figures`` returns.

    The wait for the slowest rank is counted as communication, as in measured runs, where ranks wait for each other in
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


def render(p: Prediction, stats: Mapping[str, Any]) -> str:
    """Return a table of predicted and measured times, and a sentence about the largest difference."""
    plan, reality = predicted(p), figures(stats)
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
        verdict = f"The run is as planned: no part differs by more than {_SMALL:.0%} of the step."
    else:
        verdict = (
            f"The largest difference is {worst}: {_signed(parts[worst])} per step. {_HINTS[worst, parts[worst] > 0]}"
        )
    return f"{heading}\n\n{report.table(rows)}\n\n{verdict}\n"


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
