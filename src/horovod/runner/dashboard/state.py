"""The state of a job that the dashboard shows. The launcher reports each event with its time.

Memory use depends only on the number of ranks, not on the amount of output or reports. Each part of the state stores
the version of its last change, so that `since` can return only the changes that a page has not received yet.

`Series` and `Tail` hold the time series and the last output lines of a rank, both of bounded size.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from horovod.common.contract import live, reasons
from horovod.runner.plan.hosts import Slot

POINTS = 240


class Series:
    """Time series of bounded size. Each point is the mean over an interval.

    If there are more than POINTS points, the interval doubles. Missing values are None.
    """

    def __init__(self, columns: int) -> None:
        self.width = 1.0
        """Seconds per point."""
        self._columns = columns
        self._rows: dict[int, _Point] = {}  # Points of the time series, keyed by interval number

    def add(self, version: int, at: float, values: Sequence[float | None]) -> None:
        """Add values that were measured at time `at` (seconds since the start of the job)."""
        self._point(int(at / self.width)).add(version, values)
        while len(self._rows) > POINTS:
            self._halve(version)

    def _point(self, number: int) -> _Point:
        return self._rows.setdefault(number, _Point(self._columns))

    def _halve(self, version: int) -> None:
        rows, self._rows = self._rows, {}
        self.width *= 2
        for number, point in rows.items():
            self._point(number // 2).merge(version, point)

    def since(self, version: int) -> dict[str, Any] | None:
        """Return the points that have changed since `version`, or None if there are none.

        The result contains `width`, the seconds between points, and `rows`. Each row is [seconds since the start,
        values...], and replaces an earlier row with the same time. A change of `width` makes all earlier rows obsolete.
        """
        rows = [
            [number * self.width, *point.means()] for number, point in self._rows.items() if point.version > version
        ]
        return {"width": self.width, "rows": rows} if rows else None


class _Point:
    def __init__(self, columns: int) -> None:
        self.version = 0
        self._sums = [0.0] * columns
        self._counts = [0] * columns

    def add(self, version: int, values: Sequence[float | None]) -> None:
        self.version = version
        for index, value in enumerate(values):
            if value is not None:
                self._sums[index] += value
                self._counts[index] += 1

    def merge(self, version: int, other: _Point) -> None:
        self.version = version
        self._sums = [one + more for one, more in zip(self._sums, other._sums, strict=True)]
        self._counts = [one + more for one, more in zip(self._counts, other._counts, strict=True)]

    def means(self) -> list[float | None]:
        return [
            float(f"{total / count:.5g}") if count else None
            for total, count in zip(self._sums, self._counts, strict=True)
        ]


# Number of characters at which a complete output line is truncated
CUT = 400
_MAX_LINE = 4 * CUT  # Number of bytes at which an incomplete output line is truncated
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = dict.fromkeys([*range(9), *range(10, 32), *range(127, 160)])
_NUMBERS = re.compile(r"\B(?=(?:\d{3})+$)")


class Line(NamedTuple):
    """Output line, with the version of the dashboard's state in which it was added."""

    version: int
    stream: int
    text: str


def shown(data: bytes, length: int) -> str:
    """Convert a line to text without colors and control characters. If it was truncated, append its full length."""
    text = _ESCAPES.sub("", data.decode(errors="replace")).translate(_CONTROLS)
    if len(text) <= CUT and length <= len(data):
        return text
    return f"{text[:CUT]} … ({_NUMBERS.sub(',', str(length))} bytes)"


def text(line: str) -> str:
    """Convert text to a single line without colors and control characters, truncated like an output line."""
    data = line.replace("\n", " ").encode(errors="replace")
    return shown(data[:_MAX_LINE], len(data))


class _Open:
    """Output line that is still incomplete."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._length = 0
        self._returned = False

    def add(self, piece: bytes) -> None:
        """Add output to the line. A carriage return restarts the line, so that a progress bar shows its last state."""
        if not piece:
            return
        last = piece.rstrip(b"\r")
        if b"\r" in last:
            last = last[last.rindex(b"\r") + 1 :]
            self._returned = True
        if last and self._returned:
            self._data.clear()
            self._length = 0
            self._returned = False
        self._data += last[: _MAX_LINE - len(self._data)]
        self._length += len(last)
        self._returned = self._returned or piece.endswith(b"\r")

    def text(self) -> str:
        return shown(bytes(self._data), self._length)

    def take(self) -> str:
        text = self.text()
        self.__init__()  # type: ignore[misc]
        return text


class Tail:
    """The most recent output lines of one rank, from stdout and stderr, in order of arrival."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._open = {1: _Open(), 2: _Open()}
        self.lines: deque[Line] = deque(maxlen=keep)
        self.count = 0
        """Number of lines so far, including dropped ones."""
        self.now = ""
        """Text of the line that has not ended yet."""

    def feed(self, version: int, stream: int, data: bytes) -> None:
        """Add output of a stream. `version` is the new version of the dashboard's state."""
        partial = self._open[stream]
        *whole, rest = data.split(b"\n")
        skipped = len(whole) - self._keep
        if skipped > 0:
            del whole[:skipped]
            self.count += skipped
            partial.take()
        for piece in whole:
            partial.add(piece)
            self.lines.append(Line(version, stream, partial.take()))
        self.count += len(whole)
        partial.add(rest)
        self.now = partial.text()

    @property
    def last(self) -> str:
        """Most recent output line, even if it is incomplete."""
        return self.now or (self.lines[-1].text if self.lines else "")


LINES = 100  # Number of output lines to keep for each rank. Large jobs keep fewer.
_ALL_LINES = 20_000
_LEAST_LINES = 20
# A page update contains at most _AT_ONCE lines in total, but always allows _LEAST_AT_ONCE lines per rank.
_AT_ONCE, _LEAST_AT_ONCE = 2000, 5
# Maximum number of different values, such as the loss, that a job can report
NAMES = 100
# Number of reported values whose history is kept. The values that were reported first are chosen.
_CHARTED = 8
_MESSAGES = 50  # Number of the launcher's most recent messages to keep

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
    # State of the rank: "starting", "running", "training" after hvd.init(), "ended" or "failed"
    state: str = "starting"
    pid: int = 0
    end: str = ""
    row: live.Row | None = None
    version: int = 1
    printed: int = 0  # Version of the dashboard state when the rank last wrote output


@dataclass
class _Job:
    phase: str = "starting"
    overall: live.Overall | None = None
    # Training speed in steps per second, computed from rank 0's timestamps
    rate: float | None = None
    stepped: float | None = None  # Time of the last step, in seconds since the start of the job
    ended: dict[str, Any] | None = None
    version: int = 1


@dataclass
class _Waiting:
    waits: live.Waits = field(default_factory=lambda: live.Waits(0, []))
    version: int = 1


class State:
    """State of one job, as shown on the dashboard's pages."""

    def __init__(self, command: str, slots: list[Slot]) -> None:
        self.version = 1
        self._command = text(command)
        keep = max(_LEAST_LINES, min(LINES, _ALL_LINES // max(1, len(slots))))
        self._ranks = {slot.rank: _Rank(slot.hostname, Tail(keep)) for slot in slots}
        self._job = _Job()
        self._waiting = _Waiting()
        self._messages: deque[Line] = deque(maxlen=_MESSAGES)
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
        """Set the job's phase. `name` is a phase from `job.policy`."""
        phase = _PHASES.get(name, "running")
        if phase != self._job.phase and not self.ended:
            self._job.phase, self._job.version = phase, self._next()

    def started(self, rank: int, pid: int) -> None:
        """Record that a rank's process has started."""
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
            self._messages.append(Line(self._next(), 0, text(line)))

    def exited(self, rank: int, how: str, failed: bool) -> None:
        """Record that a rank's process has exited."""
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
            # Mark all other ranks as ended, because launchers such as mpirun do not report the exit of each rank.
            if one.state not in ("ended", "failed"):
                one.state, one.version = "failed" if number == rank else "ended", self._next()
        shown = "\n".join(text(line) for line in message.splitlines()[:_MESSAGES])
        self._job.ended = {"code": code, "message": shown, "rank": rank, "stopped": stopped, "after": round(now, 1)}
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
        # A smaller number of steps means that the script called hvd.init() again and counts from 0.
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
            "job": self._encode_job() if self._job.version > version else None,
            "waiting": self._encode_waiting() if self._waiting.version > version else None,
            "ranks": [self._encode_rank(r, one) for r, one in self._ranks.items() if one.version > version],
            "lines": self._encode_lines(version),
            "said": [line.text for line in self._messages if line.version > version],
            "steps": self._steps.since(version),
            "values": [self._encode_value(v, version) for changed, v in self._values.values() if changed > version],
        }
        found.update((name, part) for name, part in parts.items() if part)
        return found

    def _encode_job(self) -> dict[str, Any]:
        job, overall = self._job, self._job.overall
        encoded: dict[str, Any] = {
            "command": self._command,
            "size": len(self._ranks),
            "hosts": len({one.host for one in self._ranks.values()}),
            "phase": job.phase,
            "ended": job.ended,
            "stepped": job.stepped,
            "rate": job.rate,
        }
        if overall is not None:
            encoded.update(
                made=overall.made,
                bandwidth=overall.bandwidth,
                link=overall.link,
                last=overall.last_lately or overall.last,
                parts=_named(overall.lately or overall.whole),
                sentence=text(overall.sentence),
            )
        return encoded

    def _encode_waiting(self) -> dict[str, Any]:
        waits = self._waiting.waits
        rows = [
            {"name": text(w.name), "age": round(w.age, 1), "ready": w.ready, "lacking": w.lacking, "missing": w.missing}
            for w in waits.waits
        ]
        return {"total": waits.total, "rows": rows, "why": text(waits.why)}

    @staticmethod
    def _encode_rank(rank: int, one: _Rank) -> dict[str, Any]:
        encoded: dict[str, Any] = {"rank": rank, "host": one.host, "pid": one.pid, "state": one.state, "end": one.end}
        if one.row is not None:
            encoded.update(made=one.row.made, share=one.row.share, late=one.row.late, parts=_named(one.row.parts))
        return encoded

    def _encode_lines(self, version: int) -> list[dict[str, Any]]:
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

    def _encode_value(self, value: live.Value, version: int) -> dict[str, Any]:
        chart = self._charts.get(value.name)
        return {
            "name": text(value.name),
            "mean": value.mean,
            "least": value.minimum,
            "most": value.maximum,
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
    """Return the durations of the parts of a step by name, rounded for display."""
    if parts is None:
        return None
    data, alone, hidden, exposed, step = (None if value is None else round(value, 7) for value in _stacked(parts))
    return {"data": data, "compute": alone, "hidden": hidden, "exposed": exposed, "step": step}
