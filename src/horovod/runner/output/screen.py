"""Everything that the launcher shows or records: workers' lines, its own messages, files per rank, ends of stderr.

The ends of the workers' stderr explain why they ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from horovod.runner.attribution import first_failure
from horovod.runner.attribution.tracebacks import HEADER
from horovod.runner.dashboard.sink import DashboardSink
from horovod.runner.output.display import Display
from horovod.runner.output.output import OutputQueue, OutputSink
from horovod.runner.output.rank_files import RankFiles
from horovod.runner.plan.settings import LaunchSettings
from horovod.runner.protocol.messages import Output


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
