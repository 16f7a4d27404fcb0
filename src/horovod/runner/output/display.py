"""Display of the workers' output and the launcher's messages, with prefixes, progress bars and output files."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from horovod.common.contract.reasons import rank_ranges
from horovod.runner.agent.messages import Output
from horovod.runner.attribution import first_failure
from horovod.runner.attribution.tracebacks import HEADER
from horovod.runner.dashboard.sink import DashboardSink
from horovod.runner.output.bars import Bars, Source
from horovod.runner.output.output import OutputQueue, OutputSink
from horovod.runner.output.rank_files import STREAMS, RankFiles
from horovod.runner.output.repeats import Collapser, Cut, Farewells
from horovod.runner.output.row import Row
from horovod.runner.output.terminal import StreamText
from horovod.runner.plan.settings import LaunchSettings

_NEVER = float("inf")
LOG_INTERVAL = 10.0  # Seconds between two log lines of a progress bar if the output is a file or pipe


class BarBoard:
    """Collection of the output streams that currently draw progress bars.

    `prefix` is a function that returns the text to print before the bars of a stream.
    """

    def __init__(self, queue: OutputSink, prefix: Callable[[Source], str]) -> None:
        self._queue = queue
        self._prefix = prefix
        self._texts: dict[Source, StreamText] = {}
        # Maps each stream to the time at which its progress bars are considered finished or must be logged.
        self._dues: dict[Source, float] = {}
        self._soonest = _NEVER  # Lower bound for the times in `_dues`

    def follow(self, source: Source, text: StreamText) -> None:
        """Redraw the bars of a stream, because the stream has changed."""
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
        """Return the streams that have final lines to show, or progress bars to log, at time `now`."""
        if now < self._soonest:
            return []
        due = [source for source, at in self._dues.items() if at <= now]
        self._soonest = min((at for at in self._dues.values() if at > now), default=_NEVER)
        return [(source, self._texts[source]) for source in due]

    def logged(self, source: Source, now: float) -> list[bytes]:
        """Return log lines for the progress bars of the stream that are due to be logged."""
        if self._queue.shows_bars(source[1]) or source not in self._texts:
            return []
        rows = [(row, _due(row)) for row in self._texts[source].seen()]
        return [row.logged(now) for row, due in rows if due is not None and due <= now]

    def next_due(self) -> float | None:
        """Return the next time at which lines become final or progress bars must be logged, or None."""
        return self._soonest if self._dues else None


def _due(row: Row) -> float | None:
    """Return when this progress bar must be logged next, or None if it has not changed since it was last logged."""
    if row.last_left is not None or not row.changed or row.since is None:
        return None
    return row.since + LOG_INTERVAL


class Display:
    """Display of the workers' output on the launcher's stdout and stderr.

    The display shows only whole lines, so lines of different ranks never mix. On a terminal, it draws progress bars
    below these lines. In a file or pipe, it logs progress bars at intervals. The caller must call `tick` at the time
    that `next_due` returns.

    In elastic jobs, all methods take worker numbers instead of ranks. `rank_of` returns the current rank of a worker,
    or None if the worker is new and is shown as `[new 4]`. `join` adds a worker.

    Args:
        queue: Sink to which the lines are written.
        hosts: Host of each rank.
        prefix: True to show the rank and stream before each line.
        timestamp: True to show the time as well.
        with_host: True to show the host as well.
        collapse: True to show a line only once if several ranks write it within half a second. Tracebacks that end
            several ranks are always shown once.
        cut: Function that returns how many lines to omit at the start of a traceback that ended several ranks.
        rank_of: Function that returns the current rank of a worker.
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
        """Add a worker. The caller must have stored the worker's host in `hosts`."""
        self._farewells.join(worker)
        if self._collapser is not None:
            self._collapser.join(worker)

    def show(self, rank: int, stream: int, data: bytes, now: float) -> None:
        """Show data that the rank has written to stdout (1) or stderr (2)."""
        text = self._texts.get((rank, stream))
        if text is None:
            text = self._texts[rank, stream] = StreamText(contain=self._queue.is_terminal(stream))
        lines = text.feed(data, now)
        if lines:
            self._go_on(rank, 3 - stream, now)
        self._take_lines(rank, stream, now, lines)
        self._board.follow((rank, stream), text)

    def _go_on(self, rank: int, stream: int, now: float) -> None:
        """Show the lines that the rank has already written to the other stream. Call this before showing new output."""
        text = self._texts.get((rank, stream))
        if text is not None and text.drawing and (lines := text.settle(now, at_once=True)):
            self._take_lines(rank, stream, now, lines)
            self._board.follow((rank, stream), text)

    def finish(self, rank: int, now: float) -> None:
        """Show the remaining output of a rank that has exited. The last line might not end with a newline."""
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
        """Remove a worker that will write no more output."""
        for stream in STREAMS:
            self._texts.pop((worker, stream), None)

    def next_due(self) -> float | None:
        """Return the time at which the caller must call `tick` if no output arrives, or None."""
        dues = (
            self._farewells.next_due(),
            self._collapser.next_due() if self._collapser is not None else None,
            self._board.next_due(),
            self._queue.next_due(),
        )
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> None:
        """Show the lines and progress bars whose delay has passed."""
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
        """Show all lines that were held back to be merged with identical lines from other ranks."""
        for rank in self._hosts:
            self.finish(rank, 0.0)
        self.tick(float("inf"))

    def _put(self, ranks: Collection[int], stream: int, line: bytes) -> None:
        """Write one line, with a prefix that names the ranks that wrote it."""
        self._queue.put(stream, self._prefix_of(ranks, stream) + line)

    def _take_lines(self, rank: int, stream: int, now: float, lines: list[bytes]) -> None:
        if stream == 2 and self._collapser is None:  # A collapser already merges all lines, including tracebacks.
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


class FirstException:
    """Callback that makes the display omit the traceback of the first exception, and show only its message.

    `horovod.run` uses it, because it raises this exception with the full traceback in the calling program. Later
    exceptions are shown in full. The callback is passed to `Farewells` as the argument `cut`.
    """

    def __init__(self) -> None:
        self._met = False

    def __call__(self, lines: Sequence[bytes]) -> int:
        """Return how many of the first lines of a rank's traceback to omit from the display."""
        texts = [line.decode(errors="replace").rstrip("\r\n") for line in lines]
        exception, victim = first_failure.find_exception("\n".join(texts))
        if self._met or victim or not exception:
            return 0
        self._met = True
        header = max((index for index, text in enumerate(texts) if text.endswith(HEADER)), default=0)
        return next((i for i in range(header + 1, len(texts)) if texts[i][:1].strip()), 0)


class Screen:
    """All output of a job: the workers' lines, the launcher's messages, and one file per rank and stream.

    It keeps the last stderr output of each worker, to explain why a worker exited. The launcher's loop must call
    `queue.write`.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        output: OutputSink | None,
        raises: bool = False,
        sink: DashboardSink | None = None,
        hosts: Mapping[int, str] | None = None,
        rank_of: Callable[[int], int | None] = lambda rank: rank,
    ) -> None:
        """Create the display and the output files.

        In elastic jobs, all methods take worker numbers instead of ranks, and `join` adds a worker.

        Args:
            settings: Job settings.
            output: Destination of the output. The default is this process's stdout and stderr.
            raises: True if `horovod.run` raises the exception of the first failed rank. Only the exception's message is
                shown then.
            sink: Dashboard that receives a copy of all output.
            hosts: Host of each worker by worker number. Only for elastic jobs.
            rank_of: Function that returns the current rank of a worker.

        Raises:
            OSError: If the output files cannot be created.
        """
        self.sink = sink or DashboardSink()
        self.queue = output or OutputQueue()
        self.display = Display(
            self.queue,
            {slot.rank: slot.hostname for slot in settings.slots} if hosts is None else hosts,
            prefix=settings.prefix,
            timestamp=settings.timestamp,
            with_host=settings.prefix_host,
            collapse=settings.collapse,
            cut=FirstException() if raises else None,
            rank_of=rank_of,
        )
        self._leave = hosts is not None
        self._tails: dict[int, bytearray] = {slot.rank: bytearray() for slot in settings.slots}
        self._files: RankFiles | None = None
        if settings.output_filename is not None:
            self._files = RankFiles(settings.output_filename, settings.size)

    def join(self, worker: int) -> None:
        """Add a worker of an elastic job. Raises RankFileError if the worker's output files cannot be created."""
        self._tails[worker] = bytearray()
        self.display.join(worker)
        self._with_files(lambda files: files.join(worker))

    def show(self, report: Output) -> None:
        """Show a worker's output, which can arrive after the worker has exited, because its children can still write.

        Raises:
            RankFileError: If an output file cannot be written. No output files are written after this error.
        """
        rank, stream = report.rank, report.stream
        if stream == 2 and (tail := self._tails.get(rank)) is not None:
            tail += report.data
            del tail[: -first_failure.TAIL_LIMIT]
        self.sink.output(rank, stream, report.data)
        self.display.show(rank, stream, report.data, time.monotonic())
        if rank not in self._tails:
            self.display.finish(rank, time.monotonic())
            self.display.forget(rank)
        self._with_files(lambda files: files.write(rank, stream, report.data))

    def _with_files(self, act: Callable[[RankFiles], None]) -> None:
        if self._files is not None:
            try:
                act(self._files)
            except OSError:
                files, self._files = self._files, None
                files.close()
                raise

    def finish(self, rank: int) -> None:
        """Record that the rank has exited. Raises RankFileError if its output files cannot be written."""
        self.display.finish(rank, time.monotonic())
        if self._leave:
            self._with_files(lambda files: files.finish(rank))

    def forget(self, worker: int) -> None:
        """Remove a worker that has exited and whose output is no longer needed."""
        self._tails.pop(worker, None)
        self.display.forget(worker)

    def tail(self, rank: int) -> str:
        """Return the last stderr output of the rank, or an empty string if the worker was removed."""
        return self._tails.get(rank, b"").decode(errors="replace")

    def tails(self) -> dict[int, str]:
        """Return the most recent stderr output of each rank."""
        return {rank: self.tail(rank) for rank in self._tails}

    def log(self, text: str) -> None:
        """Show one of the launcher's own messages."""
        self.sink.launcher_message(text)
        self._write(text)

    def _write(self, text: str) -> None:
        lines = "".join(f"horovodrun: {line}\n" for line in text.splitlines())
        self.queue.put(2, lines.encode(errors="surrogateescape"))

    def announce(self) -> None:
        """Show the URL of the dashboard, if there is one."""
        if self.sink.address:
            self._write(f"live page: {self.sink.address}")

    def close(self) -> None:
        """Close the output files and the terminal. Raises RankFileError if a delayed write fails."""
        files, self._files = self._files, None
        try:
            if files is not None:
                files.close()
        finally:
            self.queue.close()
