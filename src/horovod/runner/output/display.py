"""Workers' output and the launcher's messages, with prefixes and progress bars, as shown and as recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from horovod.common.contract.reasons import rank_ranges
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
from horovod.runner.protocol.messages import Output

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


# Everything that the launcher shows or records: workers' lines, its own messages, files per rank, ends of stderr.
#
# The ends of the workers' stderr explain why they ended.


class FirstException:
    """Cut for `Farewells` where the caller of `horovod.run` gets the first rank's exception.

    Of the first exception that is a rank's own, the lines before its message are left out.
    """

    def __init__(self) -> None:
        self._met = False

    def __call__(self, lines: Sequence[bytes]) -> int:
        """Return the number of lines to leave out at the front of a rank's last lines."""
        texts = [line.decode(errors="replace").rstrip("\r\n") for line in lines]
        exception, victim = first_failure.find_exception("\n".join(texts))
        if self._met or victim or not exception:
            return 0
        self._met = True
        header = max((index for index, text in enumerate(texts) if text.endswith(HEADER)), default=0)
        return next((i for i in range(header + 1, len(texts)) if texts[i][:1].strip()), 0)


class Screen:
    """Everything that the launcher shows. `queue` must be written by the launcher's loop."""

    def __init__(
        self,
        settings: LaunchSettings,
        output: OutputSink | None,
        told: bool = False,
        sink: DashboardSink | None = None,
        hosts: Mapping[int, str] | None = None,
        rank_of: Callable[[int], int | None] = lambda rank: rank,
    ) -> None:
        """Create the display and the files.

        Where workers come and go, ranks are worker numbers here, and `join` adds a worker.

        Args:
            settings: Settings of the job.
            output: Destination of the output; default this process's stdout and stderr.
            told: True if the caller gets the exception of the rank that fails first, so that only its message is shown.
            sink: Also gets everything that is shown.
            hosts: Hosts by worker number, in elastic jobs.
            rank_of: Current rank of a worker.

        Raises:
            OSError: The files cannot be created.
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
            cut=FirstException() if told else None,
            rank_of=rank_of,
        )
        self._leave = hosts is not None
        self._tails: dict[int, bytearray] = {slot.rank: bytearray() for slot in settings.slots}
        self._files: RankFiles | None = None
        if settings.output_filename is not None:
            self._files = RankFiles(settings.output_filename, settings.size)

    def join(self, worker: int) -> None:
        """Add a worker of an elastic job. Raises RankFileError."""
        self._tails[worker] = bytearray()
        self.display.join(worker)
        self._with_files(lambda files: files.join(worker))

    def show(self, report: Output) -> None:
        """Show a worker's output, even after the worker has ended, since its children may still write.

        Raises:
            RankFileError: A file cannot be written. No further file is written then.
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
        """Record that the rank has ended. Raises RankFileError."""
        self.display.finish(rank, time.monotonic())
        if self._leave:
            self._with_files(lambda files: files.finish(rank))

    def forget(self, worker: int) -> None:
        """Drop what is stored about a worker that has ended and will not be asked for again."""
        self._tails.pop(worker, None)
        self.display.forget(worker)

    def tail(self, rank: int) -> str:
        """Return the end of the rank's stderr, empty for a forgotten worker."""
        return self._tails.get(rank, b"").decode(errors="replace")

    def tails(self) -> dict[int, str]:
        """Return the end of each rank's stderr."""
        return {rank: self.tail(rank) for rank in self._tails}

    def say(self, text: str) -> None:
        """Show a message of the launcher."""
        self.sink.launcher_message(text)
        self._write(text)

    def _write(self, text: str) -> None:
        lines = "".join(f"horovodrun: {line}\n" for line in text.splitlines())
        self.queue.put(2, lines.encode(errors="surrogateescape"))

    def announce(self) -> None:
        """Show the address of the dashboard, if there is one."""
        if self.sink.address:
            self._write(f"live page: {self.sink.address}")

    def close(self) -> None:
        """Close files and output. Raises RankFileError for what could not be written until now."""
        files, self._files = self._files, None
        try:
            if files is not None:
                files.close()
        finally:
            self.queue.close()
