"""From samples to numbers, tables and JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1


def quantile(values: Sequence[float], q: float) -> float:
    """The value at share q of the sorted values, the nearest one taken."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """A collective is done when its last rank is: sample by sample, the largest over the ranks."""
    return [max(sample) for sample in zip(*by_rank, strict=True)]


def microseconds(seconds: float) -> str:
    """For tables: three figures, in microseconds."""
    us = seconds * 1e6
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


@dataclass(frozen=True)
class Result:
    """One column of one case. Times in seconds."""

    collective: str
    bytes: int
    column: str
    algorithm: str
    """What ran; empty for peers, who do not tell."""
    median: float
    p10: float
    p90: float
    samples: int
    bus_bytes_per_second: float
    order: str = ""
    formula: str = ""
    predicted: float | None = None


def result(
    collective: str, nbytes: int, column: str, samples: Sequence[float], bus_factor: float, **about: Any
) -> Result:
    """Condenses the samples of all turns."""
    median = quantile(samples, 0.5)
    bus = nbytes * bus_factor / median
    return Result(
        collective,
        nbytes,
        column,
        about.pop("algorithm", ""),
        median,
        quantile(samples, 0.1),
        quantile(samples, 0.9),
        len(samples),
        bus,
        **about,
    )


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, a blank or more between them; all but the first aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _cell(value: Result | None, ours: Result | None) -> str:
    if value is None:
        return "-"
    text = f"{microseconds(value.median)} ({microseconds(value.p10)}-{microseconds(value.p90)})"
    if ours is not None and value is not ours:
        text += f" {value.median / ours.median:.2f}x"
    return text


def comparison(results: Sequence[Result], labels: dict[int, str]) -> str:
    """Ours with bus bandwidth and algorithm, then the peers, each also as a multiple of our median.

    ``results``: of one collective; the first column that appears is ours. ``labels``: names of the sizes.
    """
    columns = list(dict.fromkeys(r.column for r in results))
    rows = [["", f"{columns[0]}, us", "bus GB/s", "algorithm", *(f"{name}, us" for name in columns[1:])]]
    for nbytes, label in labels.items():
        found = {r.column: r for r in results if r.bytes == nbytes}
        ours = found.get(columns[0])
        bus = f"{ours.bus_bytes_per_second / 1e9:.2f}" if ours and nbytes else "-"
        cells = [_cell(found.get(name), ours) for name in columns]
        rows.append([label, cells[0], bus, ours.algorithm if ours else "-", *cells[1:]])
    return grid(rows)


def algorithms_table(results: Sequence[Result], labels: dict[int, str]) -> str:
    """A row for each size and column: measured beside predicted, and the formula below. ``results``: of one
    collective."""
    rows = [["", "", "measured, us", "predicted, us", "measured / predicted"]]
    for nbytes, label in labels.items():
        for r in sorted((r for r in results if r.bytes == nbytes), key=lambda r: r.median):
            predicted = "-" if not r.predicted else microseconds(r.predicted)
            ratio = "-" if not r.predicted else f"{r.median / r.predicted:.2f}"
            rows.append([f"{label:<8} {r.column}", "", _cell(r, None), predicted, ratio])
    formulas = {r.column: (r.formula, r.order) for r in results if r.formula}
    width = max(map(len, formulas), default=0)
    orders = {"fixed": "in the fixed order", "by host": "in an order by hosts", "by slice": "in another order a slice"}
    notes = [
        f"{name:<{width}}  {formula}" + (f"; adds {orders[order]}" if order else "")
        for name, (formula, order) in formulas.items()
    ]
    return "\n".join([grid([[row[0], *row[2:]] for row in rows]), "", *notes])


def to_json(machine: dict[str, Any], results: Sequence[Result], model: dict[str, float]) -> dict[str, Any]:
    """What the JSON file holds: times in seconds, sizes in bytes, ``format`` for readers."""
    return {"format": FORMAT, **machine, "model": model, "results": [asdict(r) for r in results]}
