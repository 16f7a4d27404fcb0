"""Reader of timeline files, one per rank: names, events, rank and clock information."""

import glob
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

# The user names rank 0's file. Other ranks insert ".rankN" before its suffix.


def insert_label(path: str, label: str) -> str:
    """Insert a word before the path's suffix, as in ``t.all.json`` for ``t.json`` and "all"."""
    root, suffix = os.path.splitext(path)
    return f"{root}.{label}{suffix}"


def of_rank(path: str, rank: int) -> str:
    """Return the path of a rank's file, given rank 0's path."""
    return path if rank == 0 else insert_label(path, f"rank{rank}")


def peer_files(path: str) -> list[str]:
    """Return, in rank order, the other ranks' files that exist in the folder of rank 0's file."""
    root, suffix = os.path.splitext(path)
    numbered = []
    for name in glob.glob(f"{glob.escape(root)}.rank*{glob.escape(suffix)}"):
        number = re.fullmatch(r"\.rank(\d+)", name[len(root) : len(name) - len(suffix)])
        if number:
            numbered.append((int(number[1]), name))
    return [name for _, name in sorted(numbered)]


def printable(text: str) -> str:
    """Escape unprintable characters in the text, because they could control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


Event = dict[str, Any]
MAX_RANKS = 1 << 20
_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class _Args(msgspec.Struct):
    name: str | None = None
    host: str | None = None
    rank: _Whole | None = None
    size: _Whole | None = None
    start_ns: _Whole | None = None
    start_time_since_epoch_in_micros: _Whole | None = None
    offset_ns: _Whole | None = None
    error_ns: _Whole | None = None
    process_set: _Whole = 0
    number: _Whole = -1
    events: _Whole = 0


class _Event(msgspec.Struct):
    ph: str | None = None
    pid: _Index | None = None
    tid: _Index | None = None
    ts: Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)] | None = None
    name: str | None = None
    args: _Args = msgspec.field(default_factory=_Args)


@dataclass(frozen=True)
class Reading:
    """Measured offset between this rank's clock and rank 0's clock at time ``at``, in us as in the file.

    Rank 0's time is this rank's time plus ``offset`` ns. The error is at most ``error`` ns.
    """

    at: float
    offset: int
    error: int


@dataclass
class Trace:
    """Contents of one rank's timeline file."""

    path: str
    rank: int
    size: int
    host: str
    start_ns: int
    """Time of the host's monotonic clock, in ns, from which the times of events are counted in us."""
    epoch_us: int
    """The same point in time, in us since 1970."""
    events: list[Event] = field(repr=False)
    clock: list[Reading] = field(default_factory=list)
    """Clock readings in chronological order, or an empty list if the offset is unknown."""
    cut: bool = False
    """True if the end of the file is missing, because writing or copying was interrupted."""


def find(paths: Sequence[str]) -> list[str]:
    """Return the paths of all ranks' files in order, without duplicates.

    For each path, the result contains the file's earlier part (``--timeline-last``) and the path itself. If the path is
    rank 0's file, it also contains the other ranks' files in the same folder.

    Raises:
        FileNotFoundError: If a path does not exist.
    """
    found: dict[str, None] = {}
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path}: no such file")
        for each in [path, *peer_files(path)]:
            before = insert_label(each, "before")
            for name in (before, each):
                if os.path.exists(name):
                    found[name] = None
    return list(found)


def read(path: str) -> Trace:
    """Read a file. Raises ValueError if it is not a timeline, or OSError if it cannot be read."""
    events, cut = _events(path)
    checked = _checked(path, events)
    metadata = [event for event in checked if event.ph == "M"]
    about = next((event.args for event in metadata if event.name == "horovod"), None)
    process = next((event.args for event in metadata if event.name == "process_name" and event.pid == 0), _Args())
    if about is None or None in (about.rank, about.size, about.host, about.start_ns):
        raise ValueError(f"{path}: not a rank's timeline: it has no rank")
    rank, size, start = about.rank or 0, about.size or 0, about.start_ns or 0
    if not 0 <= rank < size <= MAX_RANKS:
        raise ValueError(f"{path}: not a rank's timeline: it says that it is of rank {rank} of {size}")
    clock = [
        Reading(event.ts, event.args.offset_ns, event.args.error_ns)
        for event in metadata
        if event.name == "clock_sync"
        and event.ts is not None
        and event.args.offset_ns is not None
        and event.args.error_ns is not None
    ]
    epoch = process.start_time_since_epoch_in_micros or 0
    return Trace(path, rank, size, about.host or "", start, epoch, events, clock, cut)


def _checked(path: str, events: Sequence[Event]) -> "list[_Event]":
    """Validate the types of the fields that this module uses, and return the events.

    Raises:
        ValueError: If a field has another type.
    """
    try:
        checked = msgspec.convert(events, list[_Event])
    except ValueError as error:
        raise ValueError(f"{path}: not a rank's timeline: {error}") from None
    for event in checked:
        if event.ph != "M" and (event.ts is None or (event.ph == "B" and event.name is None)):
            raise ValueError(f"{path}: not a rank's timeline: an event has no time or name")
    return checked


def _events(path: str) -> tuple[list[Event], bool]:
    # A running job might be writing to the file, so retry a failed read once.
    for _ in range(2):
        # Without O_NONBLOCK, opening a pipe could block.
        with open(
            os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8", errors="replace"
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError(f"{path}: not a plain file")
            text = file.read()
        try:
            whole = msgspec.json.decode(text)
            break
        except (ValueError, RecursionError):
            continue
    else:
        return _whole_lines(path, text), True
    if isinstance(whole, dict):
        whole = whole.get("traceEvents")
    if not isinstance(whole, list) or not all(isinstance(event, dict) for event in whole):
        raise ValueError(f"{path}: not a trace: it must be a list of events")
    return whole, False


def _whole_lines(path: str, text: str) -> list[Event]:
    """Return all complete events of a truncated file, in which each event is on a separate line."""
    events = []
    lines = text.split("\n")
    if lines[0].strip() != "[":
        raise ValueError(f"{path}: not a trace: it must be a list of events, as horovod's timelines are")
    for line in lines[1:]:
        try:
            event = msgspec.json.decode(line.rstrip().rstrip(","))
        except (ValueError, RecursionError):
            break
        if not isinstance(event, dict):
            break
        events.append(event)
    return events
