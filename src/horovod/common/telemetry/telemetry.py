"""Creation, lookup and shutdown of all observers of this process's job."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from horovod.common.contract import reports
from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.job import Job
from horovod.common.steps import marks
from horovod.common.telemetry import timeline
from horovod.common.telemetry.hang import ExplainListener, Hangs
from horovod.common.telemetry.message_bus import Handler, MessageBus
from horovod.common.telemetry.stacks import StackReporter
from horovod.common.telemetry.timeline import Timelines
from horovod.common.telemetry.training import Checks

if TYPE_CHECKING:
    from horovod._core import Engine
    from horovod.common.telemetry.account import Account
    from horovod.common.telemetry.live import Live

_ABOUT_STEPS = ("stepping", "steps", "steps-last", "steps-ping", "steps-pong", "steps-heard")


class Telemetry:
    """All observers of one job. They start after the engine has started, and close before it shuts down."""

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
            handlers: Handlers of further messages on the bus, by message name.
        """
        self._engine = engine
        self.bus = MessageBus(engine, job.rank)
        self.witness = StackReporter(self.bus, engine, job.rank)
        self._warn = warner(job.rank, settings)
        self.hangs = Hangs(self.bus, engine, job, self.witness, self._warn)
        self._checks = Checks(job, engine, self.bus, settings, self._warn)
        self._door = ExplainListener(self.hangs.asked) if job.rank == 0 else None
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
        self._tell(self.timelines.begin())
        self._tell(timeline.begin_nvtx_ranges(engine, settings))

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
        from horovod.common.telemetry.live import Live

        return Live(self.bus, lambda: self._account, lambda: self.hangs.last_guess)

    def _about_steps(self, kind: str, rank: int, what: dict[str, Any]) -> None:
        with self._making:  # while closing, do not create an account that nothing would close
            account = self._account if self._closing else self._make_account()
        if account is not None:
            account.heard(kind, rank, what)

    def close(self, failed: bool = False) -> None:
        """Close all observers, even if one raises. A remaining thread would prevent a clean exit of Python.

        Args:
            failed: True if an exception ends this process.
        """
        with self._making:
            self._closing = True
        with contextlib.ExitStack() as then:  # callbacks run in reverse order of their registration
            then.callback(self.timelines.stop)
            # Close after the message bus, whose thread writes to the reporter's files.
            then.callback(self.witness.close)
            then.callback(self.bus.close)
            if self._live is not None:
                then.callback(self._live.finish)
            if self._account is not None:
                then.callback(self._account.close, failed)
            then.callback(marks.close)
            then.callback(self._checks.close)
            then.callback(self.witness.answerer.close)
            if self._door is not None:
                then.callback(self._door.close)

    def finish(self) -> None:
        """Do the slow part of the shutdown, after the engine's shutdown, when no rank waits for this one any more."""
        self._tell(self.timelines.merge())

    def _tell(self, trouble: str) -> None:
        if trouble:
            self._warn(trouble)

    def leave_in_child(self) -> None:
        """Release files and descriptors in a forked child, where the observers' threads do not exist."""
        if self._door is not None:
            self._door.leave_in_child()
        if self._live is not None:
            self._live.leave_in_child()
        if self._account is not None:
            self._account.leave_in_child()
