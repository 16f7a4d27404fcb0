"""Telemetry of this process's job: statistics, hang diagnosis, timeline files and the live page's sender."""

import contextlib
import functools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from horovod.common.contract import boot, live, reports
from horovod.common.contract.log import warner
from horovod.common.contract.reasons import PIPE, ReportPipe
from horovod.common.contract.setting import steps_of
from horovod.common.contract.settings import Settings
from horovod.common.devices import libraries
from horovod.common.devices.libraries import Missing
from horovod.common.frontends import Job
from horovod.common.telemetry.hang import ExplainListener, Hangs
from horovod.common.telemetry.message_bus import Handler, MessageBus
from horovod.common.telemetry.stacks import StackReporter
from horovod.common.telemetry.training import Checks
from horovod.common.training_loop.steps import marks
from horovod.timeline import read

if TYPE_CHECKING:
    from horovod import _core
    from horovod._core import Engine
    from horovod.common.telemetry.account import Account


DYNAMIC = "DYNAMIC"
# Seconds to wait for other ranks to complete their files.
_END_PATIENCE = 1.0
# Time limit in seconds for merging the files.
_MERGING = 300.0


class Timelines:
    """Timelines of one job, of which at most one runs at a time. Thread-safe."""

    def __init__(self, job: Job, engine: "_core.Engine", settings: Settings) -> None:
        self._job, self._engine, self._settings = job, engine, settings
        self._lock = threading.Lock()
        self._running: _core.Timeline | None = None
        self._path = settings.text("HOROVOD_TIMELINE")

    def begin(self) -> str:
        """Start the timeline that the environment requests. Return an error message, or "" on success."""
        if not self._path or self._path.upper() == DYNAMIC:
            return ""
        try:
            self._open(self._path, self._settings.flag("HOROVOD_TIMELINE_MARK_CYCLES"))
        except OSError as error:
            return f"no timeline: HOROVOD_TIMELINE is {self._path!r}, and {error.strerror or error}"
        return ""

    def start(self, file_path: str, mark_cycles: bool = False) -> None:
        """Start a timeline. See ``HorovodBasics.start_timeline``."""
        if not self._path:
            raise ValueError(
                f"start_timeline({file_path!r}): HOROVOD_TIMELINE was not set when hvd.init() was called; "
                "HOROVOD_TIMELINE=DYNAMIC (horovodrun --timeline-filename DYNAMIC) lets a job start timelines later"
            )
        self.stop()
        self._open(os.fspath(file_path), mark_cycles)

    def _open(self, path: str, mark_cycles: bool) -> None:
        first, end = steps_of(self._settings.text("HOROVOD_TIMELINE_STEPS"))
        with self._lock:
            self._running = self._engine.start_timeline(
                read.of_rank(path, self._job.rank),
                socket.gethostname(),
                mark_cycles,
                self._settings.number("HOROVOD_TIMELINE_LAST"),
                first,
                end,
            )

    def stop(self) -> None:
        """Stop the running timeline, if any. The file then contains all recorded events."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            self._engine.stop_timeline(running)

    def merge(self) -> str:
        """Merge the ranks' timelines on rank 0 after the job's end, if ``HOROVOD_TIMELINE_MERGE`` is set.

        Merging runs in a separate process, because it may need a lot of memory and may fail.

        Returns:
            An error message, or "" on success.
        """
        wanted = self._settings.flag("HOROVOD_TIMELINE_MERGE") and self._job.rank == 0
        if not wanted or not self._path or self._path.upper() == DYNAMIC or not os.path.exists(self._path):
            return ""
        deadline = time.monotonic() + _END_PATIENCE
        others = [read.of_rank(self._path, rank) for rank in range(1, self._job.size)]
        while not all(map(_complete, others)) and time.monotonic() < deadline:
            time.sleep(0.05)
        words = ["merge", self._path, "-o", read.insert_label(self._path, "all")]
        try:
            subprocess.run(
                [sys.executable, *boot.arguments("horovod.timeline.__main__"), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=_MERGING,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            return f"timelines were not merged: {error.stderr.strip()}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"timelines were not merged: {error}"
        return ""


def _complete(path: str) -> bool:
    """Return True if the timeline file is complete. An incomplete file is padded with spaces after the last bracket."""
    try:
        with open(path, "rb") as file:
            file.seek(-2, os.SEEK_END)
            return file.read() == b"]\n"
    except OSError:
        return False


_PROFILER = "NVTX_INJECTION64_PATH"  # profilers set this variable to the path of the library that NVTX must load


def begin_nvtx_ranges(engine: "Engine", settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """Enable NVTX ranges for an attached profiler, unless disabled by the settings. Return an error message or ""."""
    if not environ.get(_PROFILER) or settings.flag("HOROVOD_DISABLE_NVTX_RANGES"):
        return ""
    library = libraries.nvtx(environ)
    if isinstance(library, Missing):
        return f"no ranges for the profiler in {_PROFILER}: {library.reason}"
    try:
        engine.mark_ranges(library.path)
    except OSError as error:
        return f"no ranges for the profiler in {_PROFILER}: {error}"
    return ""


_ABOUT_STEPS = ("stepping", "steps", "steps-last", "steps-ping", "steps-pong", "steps-heard")


class Telemetry:
    """All telemetry of one job. Starts after the engine, and closes before the engine shuts down."""

    def __init__(
        self,
        job: Job,
        engine: "Engine",
        settings: Settings,
        link: Callable[[], float | None],
        handlers: Mapping[str, Handler],
    ) -> None:
        """Start the observers.

        Args:
            job: The job.
            engine: Engine of the job.
            settings: Settings of this process.
            link: Function that returns the measured bandwidth of a link in bytes per second, or None.
            handlers: Handlers of additional messages on the bus, by message name.
        """
        self._engine = engine
        self.bus = MessageBus(engine, job.rank)
        self.stack_reporter = StackReporter(self.bus, engine, job.rank)
        self._warn = warner(job.rank, settings)
        self.hangs = Hangs(self.bus, engine, job, self.stack_reporter, self._warn)
        self._checks = Checks(job, engine, self.bus, settings, self._warn)
        self._explain_listener = ExplainListener(self.hangs.explain) if job.rank == 0 else None
        self.timelines = Timelines(job, engine, settings)
        self._account: Account | None = None
        self._making = threading.Lock()
        self._closing = False
        self._live = self._open_live() if job.rank == 0 and settings.flag("HOROVOD_DASHBOARD") else None
        more = [self._live] if self._live is not None else []
        self._of_account = (job, engine, self.bus, settings, link, more, self._checks.noise_scale)
        for kind in _ABOUT_STEPS:
            self.bus.on(kind, functools.partial(self._about_steps, kind))
        for kind, handler in handlers.items():
            self.bus.on(kind, handler)
        engine.wake_for_steps(self.bus.box, b'["stepping",{}]')
        marks.open(engine.step, engine.find_steps)
        self.bus.start()
        if job.local_rank == 0 and engine.report_dir:
            reports.prune(engine.report_dir)
        self._report(self.timelines.begin())
        self._report(begin_nvtx_ranges(engine, settings))

    def dump(self, directory: "str | os.PathLike[str] | None") -> str:
        """Write the flight recorder's entries to a file, and return the file's path.

        Raises:
            ValueError: If the recorder is off.
            OSError: If the file cannot be written. The message names the file.
        """
        return self._engine.dump(os.path.abspath(os.fspath(directory)) if directory is not None else "")

    @property
    def account(self) -> "Account":
        """Step statistics, created at the first step or query because the import takes a few ms."""
        with self._making:
            return self._make_account()

    def _make_account(self) -> "Account":
        if self._account is None:
            from horovod.common.telemetry.account import Account

            self._account = Account(*self._of_account)
        return self._account

    def _open_live(self) -> "Live":

        return Live(self.bus, lambda: self._account, lambda: self.hangs.last_guess)

    def _about_steps(self, kind: str, rank: int, what: dict[str, Any]) -> None:
        with self._making:  # do not create the statistics during `close`, because they would never be closed
            account = self._account if self._closing else self._make_account()
        if account is not None:
            account.receive(kind, rank, what)

    def close(self, failed: bool = False) -> None:
        """Close all observers, even if one raises, because a leftover thread would prevent a clean exit of Python.

        Args:
            failed: True if this process exits because of an exception.
        """
        with self._making:
            self._closing = True
        with contextlib.ExitStack() as then:  # register the callbacks in reverse order, because the last one runs first
            then.callback(self.timelines.stop)
            # Close the stack reporter after the message bus, whose thread writes to the reporter's files.
            then.callback(self.stack_reporter.close)
            then.callback(self.bus.close)
            if self._live is not None:
                then.callback(self._live.finish)
            if self._account is not None:
                then.callback(self._account.close, failed)
            then.callback(marks.close)
            then.callback(self._checks.close)
            then.callback(self.stack_reporter.answerer.close)
            if self._explain_listener is not None:
                then.callback(self._explain_listener.close)

    def finish(self) -> None:
        """Do the slow part of the shutdown, once the engine is down and no rank is waiting for this one."""
        self._report(self.timelines.merge())

    def _report(self, trouble: str) -> None:
        if trouble:
            self._warn(trouble)

    def leave_in_child(self) -> None:
        """Release files and descriptors in a forked child, where the observers' threads do not exist."""
        if self._explain_listener is not None:
            self._explain_listener.leave_in_child()
        if self._live is not None:
            self._live.leave_in_child()
        if self._account is not None:
            self._account.leave_in_child()


# If the live page is enabled, rank 0 sends statistics to the launcher once a second.

# Seconds between two messages to the launcher.
INTERVAL = 1.0
# Seconds of waiting after which the live page shows an operation.
_AGE = 0.5
# Maximum number of unread bytes in the pipe. The rest of its 64 KiB is reserved for other reports.
_ROOM = 32 << 10
# Seconds to wait for the thread to finish.
_PATIENCE = 0.5


class Live:
    """Sends the data of the live page to the launcher.

    It runs in its own thread, so that updates continue during a long or stuck step.
    """

    def __init__(self, bus: MessageBus, account: "Callable[[], Account | None]", why: Callable[[], str]) -> None:
        """Start sending data to the launcher.

        Args:
            bus: Message bus to the other ranks.
            account: Function that returns the job's step statistics, or None before the first step.
            why: Function that returns the most recent explanation of why operations are waiting.
        """
        self._bus, self._account, self._why = bus, account, why
        self._teller = ReportPipe(os.environ.get(PIPE, ""))
        self._at = time.monotonic()
        self._waiting: list[dict[str, Any]] = []
        # Index of the next per-rank message to send. It is the first one that did not fit into the pipe last time.
        self._next = 0
        self._wake, self._closed = threading.Event(), threading.Event()
        bus.on_waiting(self._on_waiting)
        self._thread = threading.Thread(target=self._run, name="hvd-live", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Wake the sender, because new step statistics are available."""
        self._at = time.monotonic()
        self._wake.set()

    def close(self) -> None:
        """Do nothing, because the sender must keep running until ``finish``."""

    def finish(self) -> None:
        """Stop the sender after the job has ended, and send the final statistics."""
        self._closed.set()
        self._wake.set()
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            self._waiting = []
            self._send_messages()
            self._teller.close()
            # Drop the callbacks, which keep this object and the engine alive in a reference cycle.
            self._account, self._why = lambda: None, str

    def leave_in_child(self) -> None:
        """Close the pipe in a forked child, where the sender thread does not exist."""
        self._teller.close()

    def _on_waiting(self, report: dict[str, Any]) -> None:
        if report["asked"]:
            self._waiting = [one for one in report["waiting"] if one["age"] >= _AGE]

    def _run(self) -> None:
        while not self._closed.is_set():
            self._send_messages()
            self._bus.ask_who_waits()
            self._wake.wait(INTERVAL)
            self._wake.clear()

    def _send_messages(self) -> None:
        try:
            self._send(self._messages())
        except Exception as error:  # a telemetry error must not end the job
            logging.getLogger("horovod").debug("live page: %s: %s", type(error).__name__, error)

    def _messages(self) -> list[bytes]:
        """Return the messages to send, most important first."""
        waiting = self._waiting
        messages = [live.encode(live.of_waits(waiting, self._why() if waiting else ""))]
        account = self._account()
        if account is None:
            return messages
        job = account.job()
        messages.append(live.encode(live.of_job(job, self._at)))
        more = live.packed(live.of_ranks(job["ranks"]), live.of_values(job["ranks"]))
        start = self._next % len(more) if more else 0
        return messages + more[start:] + more[:start]

    def _send(self, messages: list[bytes]) -> None:
        for number, message in enumerate(messages):
            if self._teller.waiting() > _ROOM or not self._teller.write(message):
                self._next += max(0, number - 2)
                return
        self._next = 0
