"""Summary of waiting and operation times, by rank, and by tensor and rank."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.timeline.merge import Operation, base_of, by_number, operations, to_common
from horovod.timeline.read import Trace, printable


@dataclass
class Times:
    """Total time of several operations, in microseconds."""

    operations: int = 0
    waited: float = 0.0
    """Time from this rank's readiness until the last rank's readiness."""
    waited_for: Counter[int] = field(default_factory=Counter)
    """Waiting time, by the rank that was ready last."""
    last: int = 0
    """Number of times that this rank was ready last, by more than the clocks' error."""
    negotiated: float = 0.0
    """Time from the last rank's readiness until this rank knew about it."""
    queued: float = 0.0
    """Time from the end of the negotiation until the execution began."""
    packed: float = 0.0
    carried: float = 0.0

    def add(self, own: Operation, last: Operation, separate: bool) -> None:
        """Add an operation of this rank.

        Args:
            own: The operation on this rank.
            last: The same operation on the rank that was ready last.
            separate: True if the times at which ranks became ready differ by more than the clock error.
        """
        self.operations += 1
        if separate and own is not last:
            waited = max(0.0, last.announced - own.announced)
            self.waited += waited
            self.waited_for[last.rank] += int(waited)
        self.last += separate and own is last
        if not own.scheduled:
            self.negotiated += max(0.0, own.agreed - max(last.announced, own.announced))
        self.queued += max(0.0, own.start - max(own.agreed, last.announced if own.scheduled else 0.0))
        self.packed += own.packed
        self.carried += own.carried

    def as_json(self) -> dict[str, Any]:
        return {
            "operations": self.operations,
            "waited_us": round(self.waited, 3),
            "waited_for_us": {str(rank): us for rank, us in self.waited_for.most_common()},
            "last": self.last,
            "negotiated_us": round(self.negotiated, 3),
            "queued_us": round(self.queued, 3),
            "packed_us": round(self.packed, 3),
            "carried_us": round(self.carried, 3),
        }


@dataclass
class Summary:
    """Summary of the timelines of all ranks."""

    ranks: dict[int, Times]
    tensors: dict[tuple[str, int], dict[int, Times]]
    """Times of each tensor, by (name, process set), then by rank."""
    error: float | None
    """Uncertainty of the clocks in us, or None if the offset of a rank is unknown."""
    missing: list[int]
    """Ranks without a file."""
    lost: int
    """Number of events that were dropped because the writers' buffers were full."""
    cut: list[str]
    """Files whose end is missing."""

    def as_json(self) -> dict[str, Any]:
        return {
            "clock_error_us": self.error,
            "missing_ranks": self.missing,
            "lost_events": self.lost,
            "cut_files": self.cut,
            "ranks": {str(rank): times.as_json() for rank, times in sorted(self.ranks.items())},
            "tensors": [
                {
                    "name": name,
                    "process_set": process_set,
                    "ranks": {str(rank): times.as_json() for rank, times in sorted(ranks.items())},
                }
                for (name, process_set), ranks in self.tensors.items()
            ],
        }


def summarize(traces: Sequence[Trace]) -> Summary:
    """Return the summary of the ranks' timelines."""
    base = base_of(traces)
    error = _error(traces)
    by_rank: dict[int, list[Operation]] = defaultdict(list)
    for trace in traces:
        by_rank[trace.rank] += operations(trace, to_common(trace, base))
    ranks: dict[int, Times] = {rank: Times() for rank in by_rank}
    tensors: dict[tuple[str, int], dict[int, Times]] = defaultdict(lambda: defaultdict(Times))
    for together in by_number(list(by_rank.values())):
        last = max(together.values(), key=lambda operation: operation.announced)
        first = min(operation.announced for operation in together.values())
        apart = len(together) > 1 and last.announced - first > 2 * (error or 0.0)
        for rank, mine in together.items():
            ranks[rank].add(mine, last, apart)
            tensors[mine.name, mine.process_set][rank].add(mine, last, apart)
    lost = sum(
        e.get("args", {}).get("events", 0)
        for t in traces
        for e in t.events
        if e.get("name") == "LOST" and e.get("pid") == 0
    )
    size = max(trace.size for trace in traces)
    missing = sorted(set(range(size)) - set(by_rank))
    by_waiting = sorted(tensors.items(), key=lambda item: _maximum(item[1].values()), reverse=True)
    return Summary(ranks, dict(by_waiting), error, missing, lost, [t.path for t in traces if t.cut])


def _error(traces: Sequence[Trace]) -> float | None:
    if any(not trace.clock for trace in traces):
        return None
    return max(min(reading.error for reading in trace.clock) for trace in traces) / 1000


def _maximum(times: Iterable[Times]) -> tuple[float, float]:
    """Return a tensor's sort key: first the time that ranks waited for each other, then all other time."""
    known = list(times)
    return sum(t.waited for t in known), sum(t.negotiated + t.queued + t.packed + t.carried for t in known)


_COLUMNS = ("operations", "came last", "waited", "for", "negotiated", "queued", "packed", "on the wire")


TENSORS = 10
"""Default number of tensors in a summary."""


def render(summary: Summary, limit: int = TENSORS) -> str:
    """Format two tables: one of ranks, and one of the ``limit`` tensors with the longest waits, longest first.

    Times are means per operation, in ms.
    """
    lines = ["Mean ms of an operation; waited: until the last rank was ready; for: whom, most of the time.", ""]
    lines += _table(("rank",), [((str(rank),), times) for rank, times in sorted(summary.ranks.items())])
    rows = []
    for (name, process_set), ranks in list(summary.tensors.items())[:limit]:
        shown = printable(name) + (f" (set {process_set})" if process_set else "")
        rows += [((shown, str(rank)), times) for rank, times in sorted(ranks.items())]
    left = len(summary.tensors) - limit
    lines += ["", *_table(("tensor", "rank"), rows)]
    if left > 0:
        lines.append(f"... and {left} more; --tensors N shows more, --json all")
    lines += ["", *_remarks(summary)]
    return "\n".join(lines).rstrip() + "\n"


def _remarks(summary: Summary) -> list[str]:
    remarks = []
    worst = max(summary.ranks.items(), key=lambda item: item[1].last, default=None)
    count = max((times.operations for times in summary.ranks.values()), default=0)
    if worst is not None and worst[1].last and len(summary.ranks) > 1:
        waits = [times.waited for rank, times in summary.ranks.items() if rank != worst[0]]
        mean = sum(waits) / len(waits) / max(count, 1) / 1000
        remarks.append(
            f"Rank {worst[0]} came last in {100 * worst[1].last / max(count, 1):.0f}% of {count} operations; the "
            f"others waited {mean:.2f} ms for one on average."
        )
    if summary.error is None:
        remarks.append(
            "Of some ranks it is not known how far their clocks are off; comparisons between hosts may be wrong."
        )
    elif summary.error > 0:
        remarks.append(
            f"Clocks of hosts were compared to within {summary.error:.0f} us; less than that counts as equal."
        )
    if summary.missing:
        remarks.append(
            f"No file of ranks {', '.join(map(str, summary.missing))}: who came last is among those that are here."
        )
    if summary.lost:
        remarks.append(f"{summary.lost} events are missing: the disk was too slow for them.")
    remarks += [f"{path} breaks off; what was there before that is counted." for path in summary.cut]
    return remarks


def _table(names: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], Times]]) -> list[str]:
    cells = [[*names, *_COLUMNS]]
    for keys, times in rows:
        each = 1000.0 * max(times.operations, 1)
        whom = f"rank {times.waited_for.most_common(1)[0][0]}" if times.waited_for else "-"
        figures = (times.negotiated, times.queued, times.packed, times.carried)
        cells.append(
            [*keys, str(times.operations), str(times.last), f"{times.waited / each:.3f}", whom]
            + [f"{value / each:.3f}" for value in figures]
        )
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    left = len(names) if len(names) > 1 else 0
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
