"""The progress bars of all ranks: drawn at the bottom of a terminal, or a line of each now and then in a log."""

from __future__ import annotations

from collections.abc import Callable

from horovod.runner.output.area import Bars, Source
from horovod.runner.output.output import OutputSink
from horovod.runner.output.row import Row
from horovod.runner.output.stream_text import StreamText

LOG_INTERVAL = 10.0  # s between two states of a bar in a file or pipe


class BarBoard:
    """Follows the streams that are drawing. `prefix`: what stands before the bars of one."""

    def __init__(self, queue: OutputSink, prefix: Callable[[Source], str]) -> None:
        self._queue = queue
        self._prefix = prefix
        self._texts: dict[Source, StreamText] = {}

    def follow(self, source: Source, text: StreamText) -> None:
        """The stream has written something."""
        if text.drawing:
            self._texts[source] = text
        elif self._texts.pop(source, None) is None:
            return
        if self._queue.shows_bars(source[1]):
            self._queue.draw(source, Bars(source[1], self._prefix(source), text.seen()))

    def drawing(self) -> list[tuple[Source, StreamText]]:
        """Those that are at it."""
        return list(self._texts.items())

    def due(self, source: Source, now: float) -> list[bytes]:
        """The states of its bars that are to be logged now."""
        if self._queue.shows_bars(source[1]) or source not in self._texts:
            return []
        return [row.logged(now) for row in self._texts[source].seen() if _due(row) <= now]

    def next_due(self) -> float | None:
        """When a stream is to be settled, or something to be logged."""
        dues = [text.next_due() for text in self._texts.values()]
        dues += [
            _due(row)
            for source, text in self._texts.items()
            if not self._queue.shows_bars(source[1])
            for row in text.seen()
        ]
        return min((due for due in dues if due is not None and due != _NEVER), default=None)


_NEVER = float("inf")


def _due(row: Row) -> float:
    """When the log gets the state of the bar."""
    if row.left is not None or not row.changed or row.since is None:
        return _NEVER
    return row.since + LOG_INTERVAL
