"""Progress bars of all ranks: drawn at the bottom of a terminal, or logged as lines at intervals."""

from __future__ import annotations

from collections.abc import Callable

from horovod.runner.output.area import Bars, Source
from horovod.runner.output.output import OutputSink
from horovod.runner.output.row import Row
from horovod.runner.output.stream_text import StreamText

_NEVER = float("inf")
LOG_INTERVAL = 10.0  # s between two log lines of a bar in a file or pipe


class BarBoard:
    """Streams that draw. `prefix` returns the prefix of a stream's bars."""

    def __init__(self, queue: OutputSink, prefix: Callable[[Source], str]) -> None:
        self._queue = queue
        self._prefix = prefix
        self._texts: dict[Source, StreamText] = {}
        self._dues: dict[Source, float] = {}  # when each stream must be handled although it writes nothing
        self._soonest = _NEVER  # lower bound of these times

    def follow(self, source: Source, text: StreamText) -> None:
        """Update the bars of a stream that has written, or whose lines have been taken."""
        self._dues.pop(source, None)
        if text.drawing:
            self._texts[source] = text
        elif self._texts.pop(source, None) is None:
            return
        rows = text.seen()
        dues = [text.next_due()]
        if self._queue.shows_bars(source[1]):
            self._queue.draw(source, Bars(source[1], self._prefix(source), rows))
        else:
            dues += [_due(row) for row in rows]
        due = min((due for due in dues if due is not None), default=None)
        if due is not None:
            self._dues[source] = due
            self._soonest = min(self._soonest, due)

    def due(self, now: float) -> list[tuple[Source, StreamText]]:
        """Return the streams whose lines may be final by now, or whose bars are to be logged."""
        if now < self._soonest:
            return []
        due = [source for source, at in self._dues.items() if at <= now]
        self._soonest = min((at for at in self._dues.values() if at > now), default=_NEVER)
        return [(source, self._texts[source]) for source in due]

    def logged(self, source: Source, now: float) -> list[bytes]:
        """Return the lines about the stream's bars that are to be logged now."""
        if self._queue.shows_bars(source[1]) or source not in self._texts:
            return []
        rows = [(row, _due(row)) for row in self._texts[source].seen()]
        return [row.logged(now) for row, due in rows if due is not None and due <= now]

    def next_due(self) -> float | None:
        """Return when to call `due` next, or None."""
        return self._soonest if self._dues else None


def _due(row: Row) -> float | None:
    """Return when the bar is to be logged, or None."""
    if row.left is not None or not row.changed or row.since is None:
        return None
    return row.since + LOG_INTERVAL
