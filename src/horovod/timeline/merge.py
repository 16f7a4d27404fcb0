"""Merge of all ranks' timelines: one process per tensor and one row per rank, on rank 0's clock. Pure."""

from collections.abc import Iterator, Sequence

from horovod.timeline.operations import Operation, base_of, by_number, names_of, operations, to_common
from horovod.timeline.read import Event, Trace

_OWN_ROWS = 3  # rows of pid 0 per rank: rank, schedules, steps


def merge(traces: Sequence[Trace], flows: bool = True) -> list[Event]:
    """Return the events of the merged timeline.

    Args:
        traces: Timelines of the ranks.
        flows: If True, add arrows from where a rank has announced an operation to where it executes it, and from the
            rank that came last to all others.
    """
    base = base_of(traces)
    pids: dict[tuple[str, int], int] = {}
    merged: list[Event] = [
        {
            "ph": "M",
            "pid": 0,
            "name": "process_name",
            "args": {"name": "ranks", "start_time_since_epoch_in_micros": _epoch(traces)},
        },
        {"ph": "M", "pid": 0, "name": "process_sort_index", "args": {"sort_index": 0}},
    ]
    rows: set[tuple[int, int]] = set()
    told: dict[int, list[Operation]] = {}
    for trace in traces:
        convert = to_common(trace, base)
        names = names_of(trace)
        if trace.rank not in told:
            merged += _about(trace)
        told.setdefault(trace.rank, []).extend(operations(trace, convert))
        for event in trace.events:
            pid = event.get("pid")
            if event.get("ph") == "M" or (pid != 0 and pid not in names):
                continue
            made = {**event, "ts": round(convert(event["ts"]), 3)}
            if pid == 0:
                made["tid"] = trace.rank * _OWN_ROWS + int(event.get("tid", 0))
            else:
                tensor = names[pid]
                if tensor not in pids:
                    pids[tensor] = len(pids) + 1
                    merged += _tensor(pids[tensor], *tensor)
                made["pid"], made["tid"] = pids[tensor], trace.rank
                if (made["pid"], trace.rank) not in rows:
                    rows.add((made["pid"], trace.rank))
                    merged.append(_row(made["pid"], trace.rank, f"rank {trace.rank}"))
            merged.append(made)
    if flows:
        merged += _flows(by_number(list(told.values())), pids)
    return merged


def _epoch(traces: Sequence[Trace]) -> int:
    return min(trace.epoch_us for trace in traces)


def _row(pid: int, row: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": row, "name": "thread_name", "args": {"name": name}}


def _tensor(pid: int, name: str, process_set: int) -> list[Event]:
    args: Event = {"name": name}
    if process_set:
        args["process_set"] = process_set
    return [
        {"ph": "M", "pid": pid, "name": "process_name", "args": args},
        {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}},
    ]


def _about(trace: Trace) -> list[Event]:
    best = min(trace.clock, key=lambda reading: reading.error, default=None)
    args: Event = {"rank": trace.rank, "host": trace.host}
    args["offset_ns"], args["error_ns"] = (best.offset, best.error) if best else (None, None)
    rows = ("", " schedules", " steps")
    return [
        {"ph": "M", "pid": 0, "name": "clock_sync", "args": args},
        *(_row(0, trace.rank * _OWN_ROWS + i, f"rank {trace.rank}{what}") for i, what in enumerate(rows)),
    ]


def _flows(together: Sequence[dict[int, Operation]], pids: dict[tuple[str, int], int]) -> Iterator[Event]:
    number = 0
    for ranks in together:
        if len(ranks) < 2:
            continue
        last = max(ranks.values(), key=lambda operation: operation.announced)
        pid = pids[last.name, last.process_set]
        for operation in ranks.values():
            for source in {operation.rank: operation, last.rank: last}.values():
                number += 1
                arrow: Event = {"cat": "horovod", "name": "ready", "id": number, "pid": pid}
                yield {**arrow, "ph": "s", "tid": source.rank, "ts": round(source.announced, 3)}
                at = max(operation.begun, source.announced)
                yield {**arrow, "ph": "f", "bp": "e", "tid": operation.rank, "ts": round(at, 3)}
