"""Plot of time over size, with matplotlib if it is installed (the extra horovod[benchmark])."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from horovod.benchmark.report import Result

_BANDS = 4  # with more columns, the bands would hide each other
MISSING = "no picture: matplotlib is not installed (pip install 'horovod[benchmark]')"


def draw(results: Sequence[Result], labels: dict[int, str], name: Path) -> str:
    """Write ``name``.png and ``name``.svg, with one panel per collective and one line per column.

    Both axes are logarithmic; predictions are dotted. Returns a sentence that names the files, or says why there are
    none.
    """
    if not find_spec("matplotlib"):
        return MISSING
    collectives = [c for c in dict.fromkeys(r.collective for r in results) if any(r.bytes for r in results)]
    collectives = [c for c in collectives if any(r.bytes for r in results if r.collective == c)]
    if not collectives:
        return "no picture: nothing with a size was measured"

    import matplotlib

    matplotlib.use("Agg")  # works without a display, whatever the environment says
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
        color = f"C{number % 10}"  # Matplotlib has ten colors; beyond them, markers distinguish the lines
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
