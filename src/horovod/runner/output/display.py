"""Workers' output on its way to the launcher's own: whole lines with prefixes that name the rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from horovod.common.contract.reasons import rank_ranges
from horovod.runner.output.bars import BarBoard
from horovod.runner.output.collapse import Collapser
from horovod.runner.output.farewells import Cut, Farewells
from horovod.runner.output.output import OutputSink
from horovod.runner.output.rank_files import STREAMS
from horovod.runner.output.stream_text import StreamText


class Display:
    """Display of the workers' output.

    Only whole lines are shown, so lines of different ranks never mix. Text that still changes, such as progress bars,
    is drawn below them on a terminal, and logged at intervals to a file or pipe. The caller must call `tick` at
    `next_due`.

    Where workers come and go, ranks are worker numbers here. `rank_of` returns the current rank of one, None for a new
    worker, which is shown as `[new 4]`; `join` adds a worker.

    Args:
        queue: Where the lines go.
        hosts: Host of each rank.
        prefix: Show the rank and stream before each line.
        timestamp: Show the time, too.
        with_host: Show the host, too.
        collapse: Show a line once that several ranks write within a moment. Tracebacks that end several ranks are
            always shown once.
        cut: Returns how many lines to leave out at the front of such a traceback.
        rank_of: Current rank of a worker.
    """

    def __init__(
        self,
        queue: OutputSink,
        hosts: Mapping[int, str],
        *,
        prefix: bool = True,
        timestamp: bool = False,
        with_host: bool = False,
        collapse: bool = False,
        cut: Cut | None = None,
        rank_of: Callable[[int], int | None] = lambda rank: rank,
    ) -> None:
        self._rank_of = rank_of
        self._queue = queue
        self._hosts = hosts
        self._prefix = prefix
        self._timestamp = timestamp
        self._with_host = with_host
        self._collapser = Collapser(hosts) if collapse else None
        self._farewells = Farewells(hosts, cut)
        self._texts: dict[tuple[int, int], StreamText] = {}
        self._board = BarBoard(queue, lambda source: self._label((source[0],), source[1]))

    def join(self, worker: int) -> None:
        """Add a worker, whose host is in `hosts` already."""
        self._farewells.join(worker)
        if self._collapser is not None:
            self._collapser.join(worker)

    def show(self, rank: int, stream: int, data: bytes, now: float) -> None:
        """Take bytes that the rank has written to its stdout (1) or stderr (2)."""
        text = self._texts.get((rank, stream))
        if text is None:
            text = self._texts[rank, stream] = StreamText(contain=self._queue.is_terminal(stream))
        lines = text.feed(data, now)
        if lines:
            self._go_on(rank, 3 - stream, now)
        self._take_lines(rank, stream, now, lines)
        self._board.follow((rank, stream), text)

    def _go_on(self, rank: int, stream: int, now: float) -> None:
        """Show the final lines of this stream, since the rank wrote them before it wrote to its other stream."""
        text = self._texts.get((rank, stream))
        if text is not None and text.drawing and (lines := text.settle(now, at_once=True)):
            self._take_lines(rank, stream, now, lines)
            self._board.follow((rank, stream), text)

    def finish(self, rank: int, now: float) -> None:
        """Show the rest of a rank that has ended, even without a newline."""
        for stream in STREAMS:
            text = self._texts.get((rank, stream))
            if text is not None:
                self._take_lines(rank, stream, now, text.finish())
                self._board.follow((rank, stream), text)
        self._farewells.end(rank)
        if self._collapser is not None:
            self._collapser.leave(rank)
        self.tick(now)

    def forget(self, worker: int) -> None:
        """Drop the state of a worker that has finished."""
        for stream in STREAMS:
            self._texts.pop((worker, stream), None)

    def next_due(self) -> float | None:
        """Return when `tick` must be called next without further output, or None."""
        dues = (
            self._farewells.next_due(),
            self._collapser.next_due() if self._collapser is not None else None,
            self._board.next_due(),
            self._queue.next_due(),
        )
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> None:
        """Show the lines that are due."""
        for source, text in self._board.due(now):
            lines = text.settle(now) + self._board.logged(source, now)
            self._take_lines(*source, now, lines)
            self._board.follow(source, text)
        for ranks, line in self._farewells.take(now):
            self._put(ranks, 2, line)
        self._show_groups(now)

    def _show_groups(self, now: float) -> None:
        for group in self._collapser.take(now) if self._collapser is not None else ():
            self._put(group.ranks, group.stream, group.line)

    def flush(self) -> None:
        """Show all lines that are still held."""
        for rank in self._hosts:
            self.finish(rank, 0.0)
        self.tick(float("inf"))

    def _put(self, ranks: Collection[int], stream: int, line: bytes) -> None:
        """Write a line of these ranks."""
        self._queue.put(stream, self._prefix_of(ranks, stream) + line)

    def _take_lines(self, rank: int, stream: int, now: float, lines: list[bytes]) -> None:
        if stream == 2 and self._collapser is None:  # the collapser merges all lines, tracebacks too
            lines = self._farewells.add(rank, lines, now)
        if not lines:
            return
        if self._collapser is not None:
            for line in lines:
                self._collapser.add(rank, stream, line, now)
            self._show_groups(now)
            return
        prefix = self._prefix_of((rank,), stream)
        self._queue.put(stream, prefix + prefix.join(lines))

    def _prefix_of(self, ranks: Collection[int], stream: int) -> bytes:
        text = f"{datetime.now().isoformat(' ', 'milliseconds')} " if self._timestamp else ""
        return (text + self._label(ranks, stream)).encode(errors="surrogateescape")

    def _label(self, ranks: Collection[int], stream: int) -> str:
        return f"[{self._who(ranks)}]<{STREAMS[stream]}>:" if self._prefix else ""

    def _who(self, ranks: Collection[int]) -> str:
        if not self._with_host:
            return self._named(ranks)
        by_host: dict[str, list[int]] = {}
        for rank in sorted(ranks):
            by_host.setdefault(self._hosts[rank], []).append(rank)
        return ",".join(f"{self._named(on_host)}@{host}" for host, on_host in by_host.items())

    def _named(self, workers: Collection[int]) -> str:
        found = {worker: self._rank_of(worker) for worker in workers}
        known = rank_ranges([rank for rank in found.values() if rank is not None])
        new = [f"new {worker}" for worker, rank in found.items() if rank is None]
        return ",".join(filter(None, [known, *new]))
