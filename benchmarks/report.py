"""Statistics of benchmark samples, and Markdown tables of the results."""

from __future__ import annotations

from dataclasses import dataclass, field

from horovod.benchmark.report import microseconds, quantile, slowest

__all__ = ["Cell", "microseconds", "quantile", "slowest", "table"]

OURS = "horovod"


@dataclass
class Cell:
    """Samples of one case in one column, in seconds, keyed by mode."""

    modes: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""

    def best(self) -> tuple[str, list[float]] | None:
        if not self.modes:
            return None
        return min(self.modes.items(), key=lambda item: quantile(item[1], 0.5))


def cell_text(cell: Cell | None, baseline: Cell | None, is_baseline: bool) -> str:
    best = cell.best() if cell else None
    if cell is None or best is None:
        return "failed" if cell and cell.failure else "-"
    mode, samples = best
    median = quantile(samples, 0.5)
    text = f"{microseconds(median)} ({microseconds(quantile(samples, 0.1))}-{microseconds(quantile(samples, 0.9))})"
    if len(cell.modes) > 1:
        text += f" {mode}"
    reference = baseline.best() if baseline else None
    if reference and not is_baseline:
        text += f" **{median / quantile(reference[1], 0.5):.2f}x**"
    return text


def table(np: int, columns: list[str], rows: dict[str, dict[str, Cell]]) -> str:
    """Return a Markdown table of medians and percentiles in microseconds, with ratios to Horovod."""
    lines = [f"### {np} processes", "", "| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for label, cells in rows.items():
        texts = [cell_text(cells.get(column), cells.get(OURS), column == OURS) for column in columns]
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def limit_line(rows: dict[str, dict[str, Cell]], column: str = "horovod shared") -> str:
    """Return a Markdown line with a column's speed relative to the upper limit (peers/limit.py), or ""."""
    shares = []
    for label, cells in rows.items():
        limit, reached = (cells[c].best() if c in cells else None for c in ("limit", column))
        if limit and reached:
            shares.append(f"{label} {quantile(limit[1], 0.5) / quantile(reached[1], 0.5):.0%}")
    return f"- {column}, share of the limit's speed: {', '.join(shares)}" if shares else ""


def throughput(
    np: int, columns: list[str], rows: dict[str, dict[str, Cell]], counted: dict[str, tuple[int, str]]
) -> str:
    """Return a Markdown table of the throughput of training steps.

    Args:
        np: Number of ranks.
        columns: Names of the columns.
        rows: Results by label and column.
        counted: For each label, the number of units that one rank processes per step, and the name of the unit.
    """
    lines = []
    for label, (units, name) in counted.items():
        for column in columns:
            best = rows[label][column].best() if column in rows[label] else None
            if best:
                lines.append(f"- {label}: {column} {units * np / quantile(best[1], 0.5):,.0f} {name} per second")
    return "\n".join(lines)
