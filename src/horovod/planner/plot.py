"""Plot of throughput and efficiency over the number of workers. Needs matplotlib (``horovod[benchmark]``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from horovod.planner.predict import Prediction

MISSING = "no plot: matplotlib is not installed (pip install 'horovod[benchmark]')"


def draw(lines: Mapping[str, Sequence[Prediction]], path: Path) -> str:
    """Draw predictions as lines and write the plot to a file.

    Args:
        lines: For each label, predictions for increasing numbers of workers.
        path: PNG or SVG file to write.

    Returns:
        str: Sentence that names the file, or says why no file was written.
    """
    if not find_spec("matplotlib"):
        return MISSING
    import matplotlib

    matplotlib.use("Agg")  # works without a display
    from matplotlib import pyplot

    # Keep text as text in SVG, and make the file reproducible.
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
