"""Turn samples into statistics, tables, JSON and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FORMAT = 1


def quantile(values: Sequence[float], q: float) -> float:
    """Return the quantile ``q`` of the values without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return the maximum of each sample over all ranks, because a collective ends when its last rank is done."""
    return [max(sample) for sample in zip(*by_rank, strict=True)]


def microseconds(seconds: float) -> str:
    """Format a time in microseconds with about three digits, for tables."""
    us = seconds * 1e6
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


@dataclass(frozen=True)
class Result:
    """Statistics of one case in one column of the results. Times are in seconds."""

    collective: str
    bytes: int
    column: str
    algorithm: str
    """Algorithm that was used, or "" for peers, whose algorithm is unknown."""
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
    """Summarize the samples of all measurement rounds as one result."""
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
    """Format rows as text with aligned columns. The first column is left-aligned, and all others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _cell(value: Result | None, own: Result | None) -> str:
    if value is None:
        return "-"
    text = f"{microseconds(value.median)} ({microseconds(value.p10)}-{microseconds(value.p90)})"
    if own is not None and value is not own:
        text += f" {value.median / own.median:.2f}x"
    return text


def comparison(results: Sequence[Result], labels: dict[int, str]) -> str:
    """Format a table of Horovod's times, bus bandwidth and algorithm, followed by peers relative to Horovod.

    Args:
        results: Results of one collective. The first column is Horovod's.
        labels: Names of the sizes.
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
    """Format a table with measured and predicted times for each size and column, followed by the formulas.

    All ``results`` must belong to one collective.
    """
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
    """Return the JSON file's contents, with times in seconds, sizes in bytes, and a ``format`` version."""
    return {"format": FORMAT, **machine, "model": model, "results": [asdict(r) for r in results]}


# Plots require matplotlib (``pip install horovod[benchmark]``).

_BANDS = 4  # With more columns than this, plots show no bands, because they would cover each other.
MISSING = "no picture: matplotlib is not installed (pip install 'horovod[benchmark]')"


def draw(results: Sequence[Result], labels: dict[int, str], name: Path) -> str:
    """Write ``name``.png and ``name``.svg, with one panel per collective and one line per column.

    Both axes are logarithmic, and predictions are dotted. Returns a sentence that names the files, or that says why
    none were written.
    """
    if not find_spec("matplotlib"):
        return MISSING
    collectives = [c for c in dict.fromkeys(r.collective for r in results) if any(r.bytes for r in results)]
    collectives = [c for c in collectives if any(r.bytes for r in results if r.collective == c)]
    if not collectives:
        return "no picture: nothing with a size was measured"

    import matplotlib

    matplotlib.use("Agg")  # Agg needs no display, whatever backend the environment selects
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(collectives), figsize=(7.5 * len(collectives), 5.5), squeeze=False)
    for axis, collective in zip(axes[0], collectives, strict=True):
        _panel(axis, [r for r in results if r.collective == collective and r.bytes], labels)
        axis.set_title(collective)
    figure.tight_layout()
    name.parent.mkdir(parents=True, exist_ok=True)
    paths = [Path(f"{name}.{ending}") for ending in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return "pictures: " + ", ".join(map(str, paths))


def _panel(axis: object, results: Sequence[Result], labels: dict[int, str]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    columns = list(dict.fromkeys(r.column for r in results))
    for number, column in enumerate(columns):
        points = sorted((r for r in results if r.column == column), key=lambda r: r.bytes)
        sizes, medians = [r.bytes for r in points], [r.median * 1e6 for r in points]
        color = f"C{number % 10}"  # Matplotlib has only ten default colors, so markers distinguish further lines
        marker = "osv^DPX"[number // 10 * 3 + number % 3]
        axis.plot(sizes, medians, marker=marker, markersize=4, label=column, color=color)
        if len(columns) <= _BANDS:
            low, high = ([getattr(r, end) * 1e6 for r in points] for end in ("p10", "p90"))
            axis.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
        if all(r.predicted for r in points):
            predicted = [(r.predicted or 0.0) * 1e6 for r in points]
            axis.plot(sizes, predicted, linestyle=":", color=color, linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    sizes = sorted({r.bytes for r in results})
    axis.set_xticks(sizes, [labels[size] for size in sizes], rotation=45, ha="right")
    axis.minorticks_off()
    band = "; band: 10th to 90th percentile" if len(columns) <= _BANDS else ""
    dots = "; dotted: cost model" if any(r.predicted for r in results) else ""
    axis.set_ylabel(f"us, median{band}{dots}")
    axis.grid(True, alpha=0.3)
    axis.legend(fontsize="small")
