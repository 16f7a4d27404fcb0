"""Timelines as files hold them, a rank each: events, and what is known of the rank and its clock."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.timeline import names

Event = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """Rank 0's clock is this rank's plus ``offset``, at most ``error`` off (ns), as known ``at`` (us of the file)."""

    at: float
    offset: int
    error: int


@dataclass
class Trace:
    """What one file holds."""

    path: str
    rank: int
    size: int
    host: str
    start_ns: int
    """On the monotonic clock of its host; times of events count from here, in us."""
    epoch_us: int
    """The same moment, since 1970."""
    events: list[Event] = field(repr=False)
    clock: list[Reading] = field(default_factory=list)
    """In order of time; empty: it is not known."""
    cut: bool = False
    """The end of the file was missing: its writer, or the copy, broke off."""


def find(paths: Sequence[str]) -> list[str]:
    """The files of all ranks, where the name of rank 0's is given, those beside it with what came before
    (``--timeline-last``) included; in order, each once. Raises FileNotFoundError for what is not there."""
    found: dict[str, None] = {}
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path}: no such file")
        for each in [path, *names.others(path)]:
            before = names.with_word(each, "before")
            for name in (before, each):
                if os.path.exists(name):
                    found[name] = None
    return list(found)


def read(path: str) -> Trace:
    """Raises ValueError with path and reason where it is no timeline of ours, OSError where it cannot be read."""
    events, cut = _events(path)
    about = next((e["args"] for e in events if e.get("ph") == "M" and e.get("name") == "horovod"), None)
    process: Event = next((e["args"] for e in events if e.get("name") == "process_name" and e.get("pid") == 0), {})
    if not isinstance(about, dict):
        raise ValueError(f"{path}: not a rank's timeline: it does not say which rank's it is")
    clock = [
        Reading(float(e["ts"]), int(e["args"]["offset_ns"]), int(e["args"]["error_ns"]))
        for e in events
        if e.get("ph") == "M" and e.get("name") == "clock_sync"
    ]
    return Trace(
        path,
        int(about["rank"]),
        int(about["size"]),
        str(about["host"]),
        int(about["start_ns"]),
        int(process.get("start_time_since_epoch_in_micros", 0)),
        events,
        clock,
        cut,
    )


def _events(path: str) -> tuple[list[Event], bool]:
    # A job that still writes it may be at it this moment; not twice.
    for _ in range(2):
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        try:
            whole = json.loads(text)
            break
        except ValueError:
            continue
    else:
        return _whole_lines(path, text), True
    if isinstance(whole, dict):
        whole = whole.get("traceEvents")
    if not isinstance(whole, list) or not all(isinstance(event, dict) for event in whole):
        raise ValueError(f"{path}: not a trace: accepted is a list of events")
    return whole, False


def _whole_lines(path: str, text: str) -> list[Event]:
    """Each event has a line of its own, so what is there before the file breaks off can be had."""
    events = []
    lines = text.split("\n")
    if lines[0].strip() != "[":
        raise ValueError(f"{path}: not a trace: accepted is a list of events, as horovod's timelines have it")
    for line in lines[1:]:
        try:
            event = json.loads(line.rstrip().rstrip(","))
        except ValueError:
            break
        if not isinstance(event, dict):
            break
        events.append(event)
    return events
