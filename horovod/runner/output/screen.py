"""All that the launcher shows: the workers' lines, its own words, the files per rank, and the ends of the workers'
stderr, which explain how they ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from horovod.runner.dashboard.audience import Audience
from horovod.runner.output.display import Display
from horovod.runner.output.output import OutputQueue, OutputSink
from horovod.runner.output.rank_files import RankFiles
from horovod.runner.plan.settings import LaunchSettings
from horovod.runner.protocol.messages import Output
from horovod.runner.verdict import verdict
from horovod.runner.verdict.tracebacks import HEADER


class FirstException:
    """Of the tracebacks with which ranks end, one after the other: how many lines come before the message of the first
    exception that is a rank's own, which the caller of `horovod.run` gets; 0 for all others."""

    def __init__(self) -> None:
        self._met = False

    def __call__(self, lines: Sequence[bytes]) -> int:
        texts = [line.decode(errors="replace").rstrip("\r\n") for line in lines]
        exception, victim = verdict.find_exception("\n".join(texts))
        if self._met or victim or not exception:
            return 0
        self._met = True
        header = max((index for index, text in enumerate(texts) if text.endswith(HEADER)), default=0)
        return next((i for i in range(header + 1, len(texts)) if texts[i][:1].strip()), 0)


class Screen:
    """Takes output as it comes; `queue` is written by the launcher's loop."""

    def __init__(
        self,
        settings: LaunchSettings,
        output: OutputSink | None,
        told: bool = False,
        audience: Audience | None = None,
        hosts: Mapping[int, str] | None = None,
        rank_of: Callable[[int], int | None] = lambda rank: rank,
    ) -> None:
        """`told`: the caller gets the exception of the rank that fails first, so here its message is enough.
        `audience`: who is told the same. Raises OSError when the files cannot be made.

        Where workers come and go, `hosts` are theirs by number, `rank_of` tells the present rank of one, and `join`
        that one has come; what is called a rank here is a number then.
        """
        self.audience = audience or Audience()
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
        """One of several that come and go. Raises RankFileError."""
        self._tails[worker] = bytearray()
        self.display.join(worker)
        self._with_files(lambda files: files.join(worker))

    def show(self, report: Output) -> None:
        """What a worker has started may write on when the worker has ended, and been forgotten. Raises RankFileError
        when a file cannot be written; there are no files from then on."""
        rank, stream = report.rank, report.stream
        if stream == 2 and (tail := self._tails.get(rank)) is not None:
            tail += report.data
            del tail[: -verdict.TAIL_LIMIT]
        self.audience.output(rank, stream, report.data)
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
        """Nothing more comes from this rank. Raises RankFileError."""
        self.display.finish(rank, time.monotonic())
        if self._leave:
            self._with_files(lambda files: files.finish(rank))

    def forget(self, worker: int) -> None:
        """One of several that come and go has ended, and nobody will ask why any more."""
        self._tails.pop(worker, None)
        self.display.forget(worker)

    def tail(self, rank: int) -> str:
        """The end of the rank's stderr; of one that was forgotten nothing."""
        return self._tails.get(rank, b"").decode(errors="replace")

    def tails(self) -> dict[int, str]:
        return {rank: self.tail(rank) for rank in self._tails}

    def say(self, text: str) -> None:
        """Words of the launcher itself."""
        self.audience.said(text)
        self._write(text)

    def _write(self, text: str) -> None:
        lines = "".join(f"horovodrun: {line}\n" for line in text.splitlines())
        self.queue.put(2, lines.encode(errors="surrogateescape"))

    def announce(self) -> None:
        """Where the live page is, if there is one."""
        if self.audience.address:
            self._write(f"live page: {self.audience.address}")

    def close(self) -> None:
        """Raises RankFileError for what could not be written to the last."""
        files, self._files = self._files, None
        try:
            if files is not None:
                files.close()
        finally:
            self.queue.close()
