"""What the workers print, on its way to the launcher's own output: whole lines that tell whose they are."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from datetime import datetime

from horovod.common.contract.rank_lists import ranges
from horovod.runner.output.collapse import Collapser
from horovod.runner.output.farewells import Cut, Farewells
from horovod.runner.output.lines import Colours, LineCutter
from horovod.runner.output.output import STREAMS, OutputSink


class Display:
    """Only whole lines are shown, so lines of different ranks never mix. A \\r with nothing before it gets no prefix.

    `hosts`: the host of each rank, for all ranks. `with_host`, `timestamp`: shown in the prefix too. `collapse`: a line
    that several ranks write within a moment is shown once; tracebacks that end several ranks always are. The caller
    calls `tick` at `next_due`. `cut`: of such a traceback, how many lines are left out at the front.
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
    ) -> None:
        self._queue = queue
        self._hosts = hosts
        self._prefix = prefix
        self._timestamp = timestamp
        self._with_host = with_host
        self._collapser = Collapser(hosts) if collapse else None
        self._farewells = Farewells(hosts, cut)
        self._cutters: dict[tuple[int, int], LineCutter] = {}
        self._colours: dict[tuple[int, int], Colours] = {}

    def show(self, rank: int, stream: int, data: bytes, now: float) -> None:
        """Take bytes that the rank has written on its stdout (1) or stderr (2)."""
        cutter = self._cutters.get((rank, stream))
        if cutter is None:
            cutter = self._cutters[rank, stream] = LineCutter()
        self._take_lines(rank, stream, now, *cutter.feed(data))

    def finish(self, rank: int, now: float) -> None:
        """The rank has ended: show what it left without an end of line."""
        for stream in STREAMS:
            cutter = self._cutters.get((rank, stream))
            if cutter is not None:
                self._take_lines(rank, stream, now, False, cutter.finish())
        self._farewells.end(rank)
        if self._collapser is not None:
            self._collapser.leave(rank)
        self.tick(now)

    def next_due(self) -> float | None:
        """When `tick` has something to do; None: not before more output comes."""
        dues = (self._farewells.next_due(), self._collapser.next_due() if self._collapser is not None else None)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> None:
        """Show the lines whose time has come."""
        for ranks, line in self._farewells.take(now):
            self._put(ranks, 2, line, (2, frozenset(ranks)))
        if self._collapser is None:
            return
        for group in self._collapser.take(now):
            source = (group.stream, frozenset(group.ranks))
            if group.bare and group.line == b"\n":
                self._queue.go_on(group.stream, source)
                continue
            self._put(() if group.bare else group.ranks, group.stream, group.line, source)

    def flush(self) -> None:
        """Show all that waits."""
        self.tick(float("inf"))

    def _put(self, ranks: Collection[int], stream: int, line: bytes, source: Hashable) -> None:
        """A line of these ranks; of none: without a prefix."""
        self._queue.put(stream, (self._prefix_of(ranks, stream) if ranks else b"") + line, source)

    def _take_lines(self, rank: int, stream: int, now: float, continued: bool, lines: list[bytes]) -> None:
        if stream == 2 and self._collapser is None:  # which merges all lines
            lines = self._farewells.add(rank, lines, now)
        self._show_lines(rank, stream, now, continued, lines)

    def _show_lines(self, rank: int, stream: int, now: float, continued: bool, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._queue.is_terminal(stream):
            colours = self._colours.get((rank, stream))
            if colours is None:
                colours = self._colours[rank, stream] = Colours()
            lines = [colours.contain(line) for line in lines]
        if self._collapser is not None:
            for index, line in enumerate(lines):
                self._collapser.add(rank, stream, line, now, bare=line == b"\r" or (continued and index == 0))
            self.tick(now)
            return
        source = 2 * rank + stream
        prefix = self._prefix_of((rank,), stream)
        if continued:
            self._queue.go_on(stream, source)
            lines = lines[1:]
        if b"\r" in lines:
            self._queue.put(stream, b"".join(line if line == b"\r" else prefix + line for line in lines), source)
        elif lines:
            self._queue.put(stream, prefix + prefix.join(lines), source)

    def _prefix_of(self, ranks: Collection[int], stream: int) -> bytes:
        text = f"{datetime.now().isoformat(' ', 'milliseconds')} " if self._timestamp else ""
        if self._prefix:
            text += f"[{self._who(ranks)}]<{STREAMS[stream]}>:"
        return text.encode(errors="surrogateescape")

    def _who(self, ranks: Collection[int]) -> str:
        if not self._with_host:
            return ranges(ranks)
        by_host: dict[str, list[int]] = {}
        for rank in sorted(ranks):
            by_host.setdefault(self._hosts[rank], []).append(rank)
        return ",".join(f"{ranges(on_host)}@{host}" for host, on_host in by_host.items())
