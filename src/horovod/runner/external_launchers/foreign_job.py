"""Job whose ranks are started by another launcher, such as mpirun, which horovodrun runs as a child process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping

from horovod.common.contract.reasons import PIPE
from horovod.runner.agent.messages import Output
from horovod.runner.agent.state import ranks_of
from horovod.runner.agent.workers import ReportReader
from horovod.runner.attribution.endings import Endings
from horovod.runner.attribution.first_failure import TAIL_LIMIT
from horovod.runner.base import linux
from horovod.runner.base.job_result import JobResult, describe_status
from horovod.runner.base.linux import SignalQueue
from horovod.runner.dashboard import open_sink
from horovod.runner.external_launchers import mpi_output
from horovod.runner.job.policy import TERM_GRACE, Policy
from horovod.runner.job.watch import Watch
from horovod.runner.output.display import Screen
from horovod.runner.output.output import OutputSink
from horovod.runner.output.rank_files import RankFileError
from horovod.runner.plan import hosts
from horovod.runner.plan.settings import LaunchSettings

_DRAIN = 5.0  # Seconds for reading the remaining output. Orphaned processes can keep the pipe open longer.
_READ = 1 << 16


def run_command(
    command: list[str],
    variables: Mapping[str, str],
    settings: LaunchSettings,
    signals: SignalQueue | None = None,
    output: OutputSink | None = None,
) -> JobResult:
    """Run another launcher's command to completion, and show its output by rank. Raises OSError if it cannot start."""
    with contextlib.closing(open_sink(settings)) as sink:
        # If `output` is given, the caller is `horovod.run`, which raises the failed rank's exception in the calling
        # program. The screen therefore need not show the whole traceback.
        screen = Screen(settings, output, raises=output is not None, sink=sink)
        screen.announce()
        if settings.verbose:
            screen.log(f"command: {' '.join(command)}")
        watch = Watch(screen, Policy(time.monotonic(), None, settings.grace), signals, len(settings.slots))
        attempt = watch.run_to_end(lambda watch: ForeignAttempt(command, variables, settings, watch))
        result = _conclude(os.path.basename(command[0]), attempt, watch)
        sink.end(result)
    return result


class ForeignAttempt:
    """A running command of another launcher, such as mpirun.

    Attributes:
        endings: Reports about how the ranks exited.
        own: Most recent output of the other launcher itself.
        code: Exit code of the other launcher, or the negative signal number, or None while it is running.
    """

    def __init__(
        self, command: list[str], variables: Mapping[str, str], settings: LaunchSettings, watch: Watch
    ) -> None:
        """Start the command of the other launcher. Raises OSError if it cannot be started."""
        self.hosts = {slot.rank: slot.hostname for slot in settings.slots}
        self.endings = Endings(self.hosts)
        here = all(hosts.is_local(name) for name in set(self.hosts.values()))
        # Ranks send reports through a pipe, which only processes on this host can open.
        self._reports = ReportReader() if here else None
        if watch.screen.sink.address and not here:
            watch.screen.log("the live page has no figures: those of ranks on other hosts reach only our own launcher")
        self.own = b""
        self._own_line = b""
        self.code: int | None = None
        self._watch = watch
        self._screen = watch.screen
        self._lines = {1: mpi_output.Lines(self.hosts), 2: mpi_output.Lines(self.hosts)}
        self._term_at: float | None = None  # Time at which mpirun gets SIGTERM and stops its ranks, or None
        self._kill_at: float | None = None
        # Deadline for reading the remaining output, set when the other launcher has exited
        self._drain_until: float | None = None
        self._output_ended = False
        parent = os.getpid()
        self._process = process = subprocess.Popen(
            command,
            env={**variables, PIPE: self._reports.name} if self._reports is not None else dict(variables),
            # The command runs in a new session, so it cannot read from the terminal.
            stdin=subprocess.DEVNULL if os.isatty(0) else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            # If this process dies, send SIGTERM to mpirun, which then stops its ranks.
            preexec_fn=lambda: linux.die_with_parent(parent, signal.SIGTERM),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipes = {process.stdout.fileno(): 1, process.stderr.fileno(): 2}
        for fd in self._pipes:
            os.set_blocking(fd, False)
        self._ended = os.pidfd_open(process.pid)

    def start(self) -> None:
        """Do nothing, because the command is already running."""

    def launch(self) -> None:
        """Do nothing, because the command starts the ranks itself."""

    def close(self) -> None:
        """Kill all processes that are still running, and read the final reports."""
        if self._process.poll() is None:
            self._kill()
        self.code = self._process.wait()
        os.close(self._ended)
        if self._reports is not None:
            self._read_reports(self._reports)
            os.close(self._reports.fd)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def ended(self) -> bool:
        return self._output_ended

    def events(self, listening: bool) -> dict[int, int]:
        wanted = dict.fromkeys(self._pipes, select.POLLIN) if listening else {}
        if self._drain_until is None:
            wanted[self._ended] = select.POLLIN
        if self._reports is not None:
            wanted[self._reports.fd] = select.POLLIN
        return wanted

    def serve(self, ready: set[int], listening: bool) -> None:
        for fd in ready & self._pipes.keys():
            self._read(fd)
        if self._reports is not None and self._reports.fd in ready:
            self._read_reports(self._reports)
        if self._ended in ready and self._drain_until is None:
            self._drain_until = time.monotonic() + _DRAIN

    def next_time(self) -> float | None:
        times = (self._term_at, self._kill_at, self._drain_until)
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: float, listening: bool) -> None:
        self._screen.sink.phase("RUNNING" if self._drain_until is None else "ENDED")
        if self._term_at is not None and now >= self._term_at and self._drain_until is None:
            self.stop(TERM_GRACE)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._kill()
        if self._drain_until is None or self._output_ended:
            return
        if not listening:  # Our own output is blocked, so mpirun's is not read: extend the deadline for reading it.
            self._drain_until = now + _DRAIN
        if not self._pipes or now >= self._drain_until:
            self._end_output()

    def stop(self, grace: float, first: int = 0) -> None:
        """Stop mpirun, which then stops its ranks.

        If `first` is given, this signal is sent to ranks on this machine, and mpirun is stopped `grace` seconds later.
        """
        if self._drain_until is not None:
            return
        if first and grace > 0 and self._signal_ranks(first):
            self._term_at = time.monotonic() + grace
            return
        self._term_at = None
        grace = min(grace, TERM_GRACE)
        if grace > 0:
            self._process.terminate()
            self._kill_at = min(self._kill_at or time.monotonic() + grace, time.monotonic() + grace)
        else:
            self._kill()

    def _signal_ranks(self, number: int) -> bool:
        """Send the signal to all ranks, because mpirun and jsrun do not forward SIGINT.

        Returns:
            False, without sending a signal, if a rank has not called `hvd.init()` or runs on another machine.
        """
        called = set(self.endings.pids.values())
        ranks = called.intersection(ranks_of([self._process.pid], called, linux.parents()))
        if len(ranks) < len(self.hosts):
            return False
        for pid in ranks:
            linux.send_signal(pid, number)
        return True

    def suspend(self) -> None:
        """Ignore Ctrl-Z, because mpirun and jsrun cannot continue after they were suspended."""

    def pass_on(self, number: int) -> None:
        """Send a warning signal to mpirun, which forwards it to its ranks.

        Do nothing if mpirun does not handle the signal.
        """
        if self._process.poll() is None and linux.catches(self._process.pid, number):
            self._process.send_signal(number)

    def doubtful(self, now: float) -> bool:
        return False

    def late(self) -> str:
        return ""

    def _kill(self) -> None:
        # Once mpirun has exited, do not kill its pid, because another process may have been given the same pid.
        if self._process.poll() is not None:
            return
        for pid in [*linux.descendants(self._process.pid), self._process.pid]:
            linux.send_signal(pid, signal.SIGKILL)

    def _read_reports(self, reports: ReportReader) -> None:
        for line in reports.read():
            self.endings.record(line)
            self._screen.sink.worker_report(line)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return
        stream = self._pipes[fd]
        if data:
            self._show(stream, self._lines[stream].feed(data))
        else:
            del self._pipes[fd]

    def _end_output(self) -> None:
        self._output_ended = True
        for stream, lines in self._lines.items():
            self._show(stream, lines.finish())
        if self._own_line:
            self._show_own(b"\n")
        for rank in self.hosts:
            self._screen.finish(rank)

    def _show(self, stream: int, pieces: Iterable[tuple[int | None, bytes]]) -> None:
        for rank, piece in pieces:
            if rank is None or rank not in self.hosts:
                self._show_own(piece)
                continue
            try:
                self._screen.show(Output(rank, stream, piece))
            except RankFileError as error:
                self._watch.fail(str(error))

    def _show_own(self, piece: bytes) -> None:
        """Show complete lines that the other launcher itself has written."""
        self.own = (self.own + piece)[-TAIL_LIMIT:]
        self._own_line = (self._own_line + piece)[-TAIL_LIMIT:]
        if self._own_line.endswith(b"\n"):
            self._screen.queue.put(2, self._own_line)
            self._own_line = b""


def _conclude(name: str, attempt: ForeignAttempt, watch: Watch) -> JobResult:
    texts = list(watch.troubles)
    if watch.received:
        number = watch.received[0]
        message = "\n".join([*texts, f"stopped by {signal.Signals(number).name}"])
        return JobResult(128 + number, message, stopped_by=number)
    code = attempt.code or 0
    if code == 0 or watch.screen.queue.broken:  # If this process could not write its output, ignore mpirun's exit code.
        exit_code = 128 + signal.SIGPIPE if watch.screen.queue.reader_gone else 1 if texts else 0
        return JobResult(exit_code, "\n".join(texts), headline="\n".join(texts))
    exit_code = 128 - code if code < 0 else code
    texts.append(f"{name} has ended: {describe_status(code)}")
    judged = mpi_output.judge(code, attempt.own.decode(errors="replace"), watch.screen.tails(), attempt.endings)
    if judged is None:
        return JobResult(exit_code, "\n".join(texts), headline="\n".join(texts))
    message, headline = ("\n".join([*texts, text]) for text in (judged.text, judged.headline))
    return JobResult(exit_code, message, judged.rank, headline=headline)
