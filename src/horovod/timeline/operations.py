"""Conversion of events to operations: times of each operation on each rank, on rank 0's clock. Pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horovod.timeline.read import Event, Trace

COPIES = frozenset({"MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER", "ALLOCATE_OUTPUT"})


@dataclass
class Operation:
    """One operation on one tensor on one rank. Times in us on rank 0's clock."""

    rank: int
    name: str
    process_set: int
    kind: str
    """ALLREDUCE, ..."""
    number: int
    """Position in the order that all ranks share."""
    announced: float
    """When this rank was ready: announced it, or submitted it to a schedule."""
    agreed: float
    """When this rank knew that all ranks were ready.

    Equal to ``announced`` with a schedule, which needs no agreement.
    """
    begun: float
    """When its execution began on this rank."""
    ended: float = 0.0
    scheduled: bool = False
    packed: float = 0.0
    """Microseconds for copying and for allocating memory."""
    carried: float = 0.0
    """Microseconds for transferring data between ranks."""
    pid: int = 0


def to_common(trace: Trace, base_ns: int) -> Callable[[float], float]:
    """Return a function that converts times of the trace to us since ``base_ns`` on rank 0's clock."""
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
    """Return the start of a merged trace, before all events, in ns on rank 0's clock."""
    return min(t.start_ns + min((r.offset for r in t.clock), default=0) for t in traces)


def names_of(trace: Trace) -> dict[int, tuple[str, int]]:
    """Return name and process set of each tensor, by pid."""
    return {
        event["pid"]: (str(args.get("name", "")), int(args.get("process_set", 0)))
        for event in trace.events
        if event.get("ph") == "M" and event.get("name") == "process_name" and event.get("pid", 0) != 0
        for args in [event.get("args", {})]
    }


@dataclass
class _State:
    """State of one tensor between events."""

    stack: list[tuple[str, float]] = field(default_factory=list)
    announced: float | None = None
    agreed: float | None = None
    now: Operation | None = None


def operations(trace: Trace, convert: Callable[[float], float]) -> list[Operation]:
    """Return all completed operations in the order of their ends."""
    names = names_of(trace)
    states: dict[int, _State] = defaultdict(_State)
    done: list[Operation] = []
    for event in trace.events:
        pid = event.get("pid")
        if pid not in names:
            continue
        ended = _follow(states[pid], event, convert, trace.rank, *names[pid])
        if ended is not None:
            ended.pid = pid
            done.append(ended)
    return done


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
        operation.begun = until
    elif label in COPIES:
        operation.packed += until - since
    else:
        operation.carried += until - since


def by_number(all_ranks: Sequence[Sequence[Operation]]) -> list[dict[int, Operation]]:
    """Return each operation on all ranks that have it, by rank; in the order of their numbers."""
    together: dict[tuple[int, int, str], dict[int, Operation]] = defaultdict(dict)
    for mine in all_ranks:
        for operation in mine:
            if operation.number >= 0:
                together[operation.number, operation.process_set, operation.name][operation.rank] = operation
    return [together[key] for key in sorted(together)]
