"""Merged timeline of all ranks. Times are on rank 0's clock. There is one process per tensor, and one row per rank."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from horovod.timeline.read import Event, Trace

COPIES = frozenset({"MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER", "ALLOCATE_OUTPUT"})


@dataclass
class Operation:
    """One operation on one tensor on one rank. Times are in us on rank 0's clock."""

    rank: int
    name: str
    process_set: int
    kind: str
    """Kind of the operation, such as ALLREDUCE."""
    number: int
    """Position in the order that all ranks share."""
    announced: float
    """Time at which this rank announced the operation, or submitted it to a schedule."""
    agreed: float
    """Time at which this rank knew that all ranks were ready.

    Equal to ``announced`` with a schedule, which needs no agreement.
    """
    start: float
    """Time at which the execution began on this rank."""
    ended: float = 0.0
    scheduled: bool = False
    packed: float = 0.0
    """Microseconds for copying and for allocating memory."""
    carried: float = 0.0
    """Microseconds for transferring data between ranks."""
    pid: int = 0


def to_common(trace: Trace, base_ns: int) -> Callable[[float], float]:
    """Return a function that converts trace times to microseconds since ``base_ns`` on rank 0's clock."""
    readings = trace.clock
    shift = (trace.start_ns - base_ns) / 1000
    if not readings:
        return lambda at: at + shift
    if len(readings) == 1:
        only = shift + readings[0].offset / 1000
        return lambda at: at + only
    times = [reading.at for reading in readings]
    offsets = [reading.offset / 1000 for reading in readings]

    def convert(at: float) -> float:
        right = bisect_right(times, at)
        if right == 0 or right == len(times):
            offset = offsets[min(right, len(times) - 1)]
        else:
            span = times[right] - times[right - 1]
            share = (at - times[right - 1]) / span if span > 0 else 1.0
            offset = offsets[right - 1] + share * (offsets[right] - offsets[right - 1])
        return at + shift + offset

    return convert


def base_of(traces: Sequence[Trace]) -> int:
    """Return a start time for the merged trace that precedes all events, in ns on rank 0's clock."""
    return min(t.start_ns + min((r.offset for r in t.clock), default=0) for t in traces)


def names_of(trace: Trace) -> dict[int, tuple[str, int]]:
    """Return the name and process set of each tensor, by its pid in the trace."""
    return {
        event["pid"]: (str(args.get("name", "")), int(args.get("process_set", 0)))
        for event in trace.events
        if event.get("ph") == "M" and event.get("name") == "process_name" and event.get("pid", 0) != 0
        for args in [event.get("args", {})]
    }


@dataclass
class _State:
    """Parser state for one tensor."""

    stack: list[tuple[str, float]] = field(default_factory=list)
    announced: float | None = None
    agreed: float | None = None
    now: Operation | None = None


def operations(trace: Trace, convert: Callable[[float], float]) -> list[Operation]:
    """Return all completed operations, in the order in which they ended."""
    names = names_of(trace)
    states: dict[int, _State] = defaultdict(_State)
    finished: list[Operation] = []
    for event in trace.events:
        pid = event.get("pid")
        if pid not in names:
            continue
        ended = _follow(states[pid], event, convert, trace.rank, *names[pid])
        if ended is not None:
            ended.pid = pid
            finished.append(ended)
    return finished


def _follow(
    state: _State, event: Event, convert: Callable[[float], float], rank: int, name: str, process_set: int
) -> Operation | None:
    phase = event.get("ph")
    if phase == "X" and event.get("name") == str(rank) and state.stack:
        state.announced = convert(event["ts"])
    elif phase == "B":
        label, at = str(event["name"]), convert(event["ts"])
        if not state.stack and label.startswith("NEGOTIATE_"):
            state.announced = state.agreed = None
        elif not state.stack:
            scheduled = state.announced is None
            ready = at if state.announced is None else state.announced
            agreed = at if state.agreed is None else state.agreed
            number = int(event.get("args", {}).get("number", -1))
            state.now = Operation(rank, name, process_set, label, number, ready, agreed, at, scheduled=scheduled)
            state.announced = state.agreed = None
        state.stack.append((label, at))
    elif phase == "E" and state.stack:
        label, since = state.stack.pop()
        at = convert(event["ts"])
        if not state.stack and state.now is None:
            state.agreed = at
        elif not state.stack:
            now, state.now = state.now, None
            assert now is not None
            now.ended = at
            return None if event.get("args", {}).get("broke_off") else now
        elif state.now is not None:
            _account(state.now, label, since, at)
    return None


def _account(operation: Operation, label: str, since: float, until: float) -> None:
    if label == "QUEUE":
        operation.start = until
    elif label in COPIES:
        operation.packed += until - since
    else:
        operation.carried += until - since


def by_number(all_ranks: Sequence[Sequence[Operation]]) -> list[dict[int, Operation]]:
    """Match operations across ranks.

    Return, for each operation in order of execution, a dict that maps ranks to their records of the operation.
    """
    together: dict[tuple[int, int, str], dict[int, Operation]] = defaultdict(dict)
    for mine in all_ranks:
        for operation in mine:
            if operation.number >= 0:
                together[operation.number, operation.process_set, operation.name][operation.rank] = operation
    return [together[key] for key in sorted(together)]


_OWN_ROWS = 3  # rows of each rank under pid 0 of the merged trace: one each for the rank, its schedules and its steps


def merge(traces: Sequence[Trace], flows: bool = True) -> list[Event]:
    """Return the events of the merged timeline.

    Args:
        traces: Timelines of the ranks.
        flows: True to add arrows from each rank's request of an operation to its execution, and from the rank that was
            ready last to all other ranks.
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
    by_rank: dict[int, list[Operation]] = {}
    for trace in traces:
        convert = to_common(trace, base)
        names = names_of(trace)
        if trace.rank not in by_rank:
            merged += _about(trace)
        by_rank.setdefault(trace.rank, []).extend(operations(trace, convert))
        for event in trace.events:
            pid = event.get("pid")
            if event.get("ph") == "M" or (pid != 0 and pid not in names):
                continue
            shifted = {**event, "ts": round(convert(event["ts"]), 3)}
            if pid == 0:
                shifted["tid"] = trace.rank * _OWN_ROWS + int(event.get("tid", 0))
            else:
                tensor = names[pid]
                if tensor not in pids:
                    pids[tensor] = len(pids) + 1
                    merged += _tensor(pids[tensor], *tensor)
                shifted["pid"], shifted["tid"] = pids[tensor], trace.rank
                if (shifted["pid"], trace.rank) not in rows:
                    rows.add((shifted["pid"], trace.rank))
                    merged.append(_row(shifted["pid"], trace.rank, f"rank {trace.rank}"))
            merged.append(shifted)
    if flows:
        merged += _flows(by_number(list(by_rank.values())), pids)
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


def _flows(groups: Sequence[dict[int, Operation]], pids: dict[tuple[str, int], int]) -> Iterator[Event]:
    number = 0
    for ranks in groups:
        if len(ranks) < 2:
            continue
        last = max(ranks.values(), key=lambda operation: operation.announced)
        pid = pids[last.name, last.process_set]
        for operation in ranks.values():
            for source in {operation.rank: operation, last.rank: last}.values():
                number += 1
                arrow: Event = {"cat": "horovod", "name": "ready", "id": number, "pid": pid}
                yield {**arrow, "ph": "s", "tid": source.rank, "ts": round(source.announced, 3)}
                at = max(operation.start, source.announced)
                yield {**arrow, "ph": "f", "bp": "e", "tid": operation.rank, "ts": round(at, 3)}
