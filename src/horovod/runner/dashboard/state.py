"""State of a job as the dashboard shows it. The launcher reports each event with its time.

The memory use depends only on the number of ranks, not on the amount of output or reports. Each part stores the version
of its last change. So `since` can return only the changes that a page has not received yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from horovod.common.contract import live, reasons
from horovod.runner.dashboard.history import Line, Series, Tail, text
from horovod.runner.plan.hosts import Slot

LINES = 100  # Number of output lines to keep of each rank. Large jobs keep fewer.
_ALL_LINES = 20_000
_LEAST_LINES = 20
# At most _AT_ONCE lines of all ranks are sent to a page in one update, but at least _LEAST_AT_ONCE of each rank.
_AT_ONCE, _LEAST_AT_ONCE = 2000, 5
NAMES = 100  # Maximum number of values that the job can report.
_CHARTED = 8  # Number of reported values whose history is kept.
_SAID = 50  # Number of the launcher's messages that are kept.

_PHASES = {
    "CONNECTING": "starting",
    "STARTING": "starting",
    "RUNNING": "running",
    "SETTLING": "failing",
    "STOPPING": "stopping",
    "ENDED": "ending",
}


@dataclass
class _Rank:
    host: str
    tail: Tail
    state: str = "starting"  # "starting", "running", "training" (after hvd.init()), "ended" or "failed"
    pid: int = 0
    end: str = ""
    row: live.Row | None = None
    version: int = 1
    printed: int = 0  # version of the state at the rank's last output


@dataclass
class _Job:
    phase: str = "starting"
    overall: live.Overall | None = None
    rate: float | None = None  # Steps per second, computed from rank 0's own timestamps, which are exact.
    stepped: float | None = None  # Time at which the number of steps last increased, in seconds since the start.
    ended: dict[str, Any] | None = None
    version: int = 1


@dataclass
class _Waiting:
    waits: live.Waits = field(default_factory=lambda: live.Waits(0, []))
    version: int = 1


class State:
    """State of one job, from which pages are updated."""

    def __init__(self, command: str, slots: list[Slot]) -> None:
        self.version = 1
        self._command = text(command)
        keep = max(_LEAST_LINES, min(LINES, _ALL_LINES // max(1, len(slots))))
        self._ranks = {slot.rank: _Rank(slot.hostname, Tail(keep)) for slot in slots}
        self._job = _Job()
        self._waiting = _Waiting()
        self._said: deque[Line] = deque(maxlen=_SAID)
        self._steps = Series(6)
        self._values: dict[str, tuple[int, live.Value]] = {}
        self._charts: dict[str, Series] = {}

    @property
    def ended(self) -> bool:
        """True if the job has ended."""
        return self._job.ended is not None

    def _next(self) -> int:
        self.version += 1
        return self.version

    def phase(self, name: str) -> None:
        """Set the phase of the job. `name` is the phase of the launcher's policy."""
        phase = _PHASES.get(name, "running")
        if phase != self._job.phase and not self.ended:
            self._job.phase, self._job.version = phase, self._next()

    def started(self, rank: int, pid: int) -> None:
        """Record that the process of a rank has started."""
        one = self._ranks[rank]
        one.pid, one.state, one.version = pid, "running", self._next()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Record output that a rank has printed."""
        one = self._ranks[rank]
        one.printed = self._next()
        one.tail.feed(one.printed, stream, data)

    def add_message(self, message: str) -> None:
        """Record a message that the launcher has printed."""
        for line in message.splitlines():
            self._said.append(Line(self._next(), 0, text(line)))

    def exited(self, rank: int, how: str, failed: bool) -> None:
        """Record that the process of a rank has ended."""
        one = self._ranks[rank]
        one.state, one.end, one.version = "failed" if failed else "ended", text(how), self._next()

    def end(self, code: int, message: str, rank: int | None, now: float, stopped: str = "") -> None:
        """Record the end of the job.

        Args:
            code: Exit code of the job.
            message: Message that explains a failure.
            rank: Rank that failed first, or None.
            now: Current time, in seconds since the start.
            stopped: Name of the signal that ended the job, or an empty string.
        """
        for number, one in self._ranks.items():
            if one.state not in ("ended", "failed"):  # Some launchers do not report the end of each rank.
                one.state, one.version = "failed" if number == rank else "ended", self._next()
        said = "\n".join(text(line) for line in message.splitlines()[:_SAID])
        self._job.ended = {"code": code, "message": said, "rank": rank, "stopped": stopped, "after": round(now, 1)}
        phase = "stopped" if stopped else "failed" if code else "ended"
        self._job.phase, self._job.version = phase, self._next()

    def add_report(self, line: bytes, now: float) -> None:
        """Record a report from a worker. Lines that are not valid reports are ignored."""
        report = live.decode(line) or reasons.decode(line)
        if isinstance(report, live.Overall):
            self._take_overall(report, now)
        elif isinstance(report, live.Rows):
            self._take_rows(report)
        elif isinstance(report, live.Values):
            self._take_values(report, now)
        elif isinstance(report, live.Waits):
            if report != self._waiting.waits:
                self._waiting.waits, self._waiting.version = report, self._next()
        elif isinstance(report, reasons.Called):
            one = self._ranks.get(report.rank)
            if one is not None and one.state in ("starting", "running"):
                one.state, one.version = "training", self._next()

    def _take_overall(self, overall: live.Overall, now: float) -> None:
        job = self._job
        before = job.overall
        if overall == before:
            return
        job.overall, job.version = overall, self._next()
        # The counts restarted, because the script called hvd.init() again.
        if before is None or overall.made < before.made:
            job.stepped = now if overall.made else None
            return
        if overall.made == before.made:
            return
        job.stepped = now
        if overall.at > before.at and overall.own > before.own:
            job.rate = (overall.own - before.own) / (overall.at - before.at)
        self._steps.add(job.version, now, [job.rate, *_stacked(overall.lately)])

    def _take_rows(self, rows: live.Rows) -> None:
        for row in rows.rows:
            one = self._ranks.get(row.rank)
            if one is not None and one.row != row:
                one.row, one.version = row, self._next()

    def _take_values(self, values: live.Values, now: float) -> None:
        for value in values.values[:NAMES]:
            name = value.name[: live.NAME]
            if name not in self._values and len(self._values) >= NAMES:
                return
            if name in self._values and self._values[name][1] == value:
                continue
            self._values[name] = (self._next(), value)
            if name in self._charts or len(self._charts) < _CHARTED:
                self._charts.setdefault(name, Series(1)).add(self.version, now, [value.mean])

    def since(self, version: int, now: float) -> dict[str, Any]:
        """Return all changes since `version`, or the whole state for version 0.

        `now` is the current time in seconds since the start.
        """
        found: dict[str, Any] = {"version": self.version, "now": round(now, 1)}
        parts: dict[str, Any] = {
            "job": self._told_job() if self._job.version > version else None,
            "waiting": self._told_waiting() if self._waiting.version > version else None,
            "ranks": [self._told_rank(r, one) for r, one in self._ranks.items() if one.version > version],
            "lines": self._told_lines(version),
            "said": [line.text for line in self._said if line.version > version],
            "steps": self._steps.since(version),
            "values": [self._told_value(v, version) for told, v in self._values.values() if told > version],
        }
        found.update((name, part) for name, part in parts.items() if part)
        return found

    def _told_job(self) -> dict[str, Any]:
        job, overall = self._job, self._job.overall
        told: dict[str, Any] = {
            "command": self._command,
            "size": len(self._ranks),
            "hosts": len({one.host for one in self._ranks.values()}),
            "phase": job.phase,
            "ended": job.ended,
            "stepped": job.stepped,
            "rate": job.rate,
        }
        if overall is not None:
            told.update(
                made=overall.made,
                bandwidth=overall.bandwidth,
                link=overall.link,
                last=overall.last_lately or overall.last,
                parts=_named(overall.lately or overall.whole),
                sentence=text(overall.sentence),
            )
        return told

    def _told_waiting(self) -> dict[str, Any]:
        waits = self._waiting.waits
        rows = [
            {"name": text(w.name), "age": round(w.age, 1), "ready": w.ready, "lacking": w.lacking, "missing": w.missing}
            for w in waits.waits
        ]
        return {"total": waits.total, "rows": rows, "why": text(waits.why)}

    @staticmethod
    def _told_rank(rank: int, one: _Rank) -> dict[str, Any]:
        told: dict[str, Any] = {"rank": rank, "host": one.host, "pid": one.pid, "state": one.state, "end": one.end}
        if one.row is not None:
            told.update(made=one.row.made, share=one.row.share, late=one.row.late, parts=_named(one.row.parts))
        return told

    def _told_lines(self, version: int) -> list[dict[str, Any]]:
        printed = {rank: one.tail for rank, one in self._ranks.items() if one.printed > version}
        most = max(_LEAST_AT_ONCE, _AT_ONCE // max(1, len(printed)))
        return [
            {
                "rank": rank,
                "count": tail.count,
                "now": tail.now,
                "lines": [[line.stream, line.text] for line in list(tail.lines)[-most:] if line.version > version],
            }
            for rank, tail in printed.items()
        ]

    def _told_value(self, value: live.Value, version: int) -> dict[str, Any]:
        chart = self._charts.get(value.name)
        return {
            "name": text(value.name),
            "mean": value.mean,
            "least": value.least,
            "most": value.most,
            "ranks": value.ranks,
            "course": chart.since(version) if chart is not None else None,
        }


def _stacked(parts: live.Parts | None) -> list[float | None]:
    """Return the durations of a step's parts, followed by the duration of the whole step.

    The parts are waiting for data, computation without communication, computation that overlaps with communication, and
    exposed communication.
    """
    if parts is None:
        return [None] * 5
    compute = parts.compute
    hidden = None if compute is None else min(parts.hidden or 0.0, compute)
    alone = None if compute is None or hidden is None else compute - hidden
    return [parts.data, alone, hidden, parts.exposed, parts.step]


def _named(parts: live.Parts | None) -> Mapping[str, float | None] | None:
    """Return the durations of a step's parts by name, rounded for display."""
    if parts is None:
        return None
    data, alone, hidden, exposed, step = (None if value is None else round(value, 7) for value in _stacked(parts))
    return {"data": data, "compute": alone, "hidden": hidden, "exposed": exposed, "step": step}
