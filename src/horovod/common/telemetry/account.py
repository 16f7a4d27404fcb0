"""Step statistics of a job. Each rank reports to rank 0 once a second. Rank 0 exports the combined statistics.

The thread that sends reports sleeps while no steps finish, and wakes at the first step after a pause. It never delays
the program, except at the end: rank 0 then waits up to half a second for the last reports.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horovod.common.contract.settings import Settings
from horovod.common.frontends import Job
from horovod.common.telemetry.exporters import Exporter, open_exporters
from horovod.common.telemetry.message_bus import Handler, MessageBus
from horovod.common.telemetry.sentence import sentence
from horovod.common.telemetry.steps import Clock, CombinedSteps, OwnSteps, Pings, Step, StepSample, Sums, figures, mean
from horovod.common.training_loop.steps import marks

if TYPE_CHECKING:
    from horovod._core import Engine

LEAST_STEPS = 50
"""Minimum number of steps for a summary line at the end of a job."""
# Maximum number of values that a program can report.
_NAMES = 100
# Maximum number of messages per second to rank 0. In larger jobs, each rank sends less often.
_NOTES = 32
# Minimum number of steps after which a rank sends a final report.
_SOME = 10
# Maximum difference in age between ranks' reports, as a multiple of the report interval.
_LAG = 3
# Seconds to wait for final reports at shutdown.
_PATIENCE = 0.5
# Seconds between checks for ranks that have left.
_SLICE = 0.005


class Account:
    """One rank's part of a job's step statistics. Rank 0 also combines the reports of all ranks."""

    def __init__(
        self,
        job: Job,
        engine: "Engine",
        bus: MessageBus,
        settings: Settings,
        link: Callable[[], float | None],
        more: Sequence[Exporter] = (),
        noise_scale: Callable[[], dict[str, Any] | None] = lambda: None,
    ):
        """Create the step statistics of a job.

        Args:
            job: The job.
            engine: Engine of the job.
            bus: Message bus to the other ranks.
            settings: Settings of this process.
            link: Function that returns the measured bandwidth of a link in bytes per second, or None. Called once.
            more: Additional exporters, besides those that the settings enable.
            noise_scale: Function that returns the gradient noise scale if rank 0 knows it, else None.
        """
        self._job, self._engine, self._bus, self._settings, self._link_of = job, engine, bus, settings, link
        self._interval = max(1.0, job.size / _NOTES)
        # Identify a host by its first rank, because cross ranks are ambiguous if hosts have different numbers of ranks.
        self._host = job.hosts.index(job.hosts[job.rank]) if job.hosts else job.cross_rank
        self._lock = threading.RLock()  # protects all attributes below, except for the `threading.Event` objects
        self._own = OwnSteps()
        self._sample: list[StepSample] = []
        self._reported: dict[str, float] = {}
        self._news = self._new_values = False
        self._over = False  # set once all ranks have sent their final reports
        self._combined = CombinedSteps(job.size) if job.rank == 0 else None
        if self._combined is not None:
            self._combined.clocks[self._host] = Clock()
        self._reported_values: dict[int, dict[str, float]] = {}
        self._data: dict[int, bool] = {}
        self._final_reports: set[int] = set()
        self._pings: dict[int, Pings] = {}
        self._link: float | None = None
        self._exporters: list[Exporter] = []
        self._more = more
        self._noise_scale = noise_scale
        self._thread: threading.Thread | None = None
        self._wake, self._closed, self._acknowledged = threading.Event(), threading.Event(), threading.Event()
        self._handlers: dict[str, Handler] = {
            "stepping": lambda rank, what: self._go_on(),
            "steps": self._on_steps,
            "steps-last": lambda rank, what: self._on_request(),
            "steps-ping": lambda rank, what: self._reply_to_ping(what),
            "steps-pong": self._learn,
            "steps-heard": lambda rank, what: self._acknowledged.set(),
        }

    def receive(self, kind: str, rank: int, what: dict[str, Any]) -> None:
        """Handle a message about step statistics. Called by ``Telemetry``."""
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(rank, what)

    def report(self, values: Mapping[str, Any]) -> None:
        """Store values reported by the program. See ``HorovodBasics.report``."""
        numbers = {}
        for name, value in values.items():
            try:
                if isinstance(value, str | bytes):
                    raise TypeError
                numbers[name] = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise ValueError(f"report: {name} must be a number, got {value!r:.80}") from None
        with self._lock:
            if len(self._reported.keys() | numbers.keys()) > _NAMES:
                raise ValueError(f"report: a job must have at most {_NAMES} names, got more")
            self._reported.update(numbers)
            self._news = self._new_values = True
        self._go_on()

    def stats(self) -> dict[str, Any]:
        """Return this rank's step statistics; see ``HorovodBasics.stats``."""
        with self._lock:
            self._look()
            own = {
                "rank": self._job.rank,
                "size": self._job.size,
                "made": self._own.completed,
                **figures(self._own.sums, self._link, marks.data_seen),
                "reported": dict(self._reported),
                "noise_scale": self._noise_scale(),
            }
            if self._combined is not None:
                news = self._news
                self._on_steps(self._job.rank, self._note())
                self._news = news  # restore the flag, because these statistics still have to be exported
                own["job"] = self.job()
            return own

    def job(self) -> dict[str, Any]:
        """Return rank 0's combined statistics of all ranks, as in ``stats()["job"]``."""
        combined = self._combined
        assert combined is not None
        with self._lock:
            ranks: list[dict[str, Any]] = []
            lately = []
            late = combined.late
            for rank, sums in sorted(combined.sums.items()):
                seen = self._data.get(rank, False)
                ranks.append(
                    {
                        "rank": rank,
                        "made": combined.completed[rank],
                        **figures(sums, self._link, seen),
                        "late": late.of(rank),
                        "reported": self._reported_values.get(rank, {}),
                    }
                )
                if rank in combined.lately:
                    lately.append(figures(combined.lately[rank], self._link, seen))
            found: dict[str, Any] = {"size": self._job.size, **mean(ranks)}
            found.update(last=_worst(late), link_bandwidth=self._link, lately=mean(lately) if lately else {"steps": 0})
            found["lately"]["last"] = _worst(combined.late_recently())
            found["ranks"] = ranks
            found["noise_scale"] = self._noise_scale()
            lag = 0.0 if self._over else _LAG * self._interval
            found["sentence"] = sentence(found, lag) if ranks and any(r["made"] for r in ranks) else ""
            return found

    def _go_on(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="hvd-steps", daemon=True)
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        try:
            if self._combined is not None:
                self._link = self._link_of()
                self._exporters = [*open_exporters(self._settings, self.job), *self._more]
                # Close the exporters again if the job ended while this thread was opening them.
                if self._closed.is_set():
                    self._close_exporters()
            while not self._closed.is_set():
                self._wake.wait()
                self._wake.clear()
                while not self._closed.wait(self._interval):
                    if not self._send_steps():
                        break
        except Exception as error:  # a telemetry error must not end the job
            logging.getLogger("horovod").warning("step accounting has ended: %s: %s", type(error).__name__, error)

    def _look(self) -> None:
        """Read the engine's measurements of the steps that have ended since the last call."""
        steps = list(map(Step._make, self._engine.take_steps()))
        if steps:
            self._sample += self._own.add(steps)
            self._news = True
        self._own.completed = max(self._own.completed, self._engine.steps_made())

    def _note(self, last: bool = False) -> dict[str, Any]:
        note = {
            "host": self._host,
            "made": self._own.completed,
            "sums": self._own.sums.values(),
            "some": self._sample,
            "data": marks.data_seen,
            "last": last,
        }
        if self._new_values:
            note["values"] = dict(self._reported)
        self._sample, self._news, self._new_values = [], False, False
        return note

    def _send_steps(self, last: bool = False) -> bool:
        """Send new statistics to rank 0 or, on rank 0, to the exporters. Return False if there were none."""
        with self._lock:
            self._look()
            if not (self._news or last):
                return False
            note = self._note(last)
            if self._combined is not None:
                self._on_steps(0, note)
        if self._combined is None:
            self._bus.send("steps", to=0, **note)
        elif not last:
            for exporter in self._exporters:
                exporter.write()
        return True

    def _on_request(self) -> None:
        """Send this rank's final report when rank 0 asks for it."""
        self._send_steps(last=True)

    def _on_steps(self, rank: int, note: dict[str, Any]) -> None:
        together = self._combined
        if together is None:
            return
        with self._lock:
            sample = [StepSample(*step) for step in note["some"]]
            together.add(rank, note["host"], note["made"], Sums(*note["sums"]), sample)
            self._data[rank] = note["data"]
            if note["host"] != self._host and any(step.blocked < 0 for step in sample):
                # Measure this host's clock offset, so that times from different hosts can be compared.
                self._bus.send("steps-ping", to=rank, asked=time.monotonic_ns())
            if "values" in note:
                self._reported_values[rank] = note["values"]
            if not note["last"]:
                return
            self._final_reports.add(rank)
            if len(self._final_reports) == self._job.size:
                self._acknowledged.set()
        if rank != self._job.rank:
            self._bus.send("steps-heard", to=rank)

    def _reply_to_ping(self, what: dict[str, Any]) -> None:
        self._bus.send("steps-pong", to=0, host=self._host, asked=what["asked"], here=time.monotonic_ns())

    def _learn(self, rank: int, what: dict[str, Any]) -> None:
        together = self._combined
        if together is None:
            return
        with self._lock:
            clock = self._pings.setdefault(what["host"], Pings()).add(what["asked"], what["here"], time.monotonic_ns())
            together.clocks[what["host"]] = clock

    def close(self, failed: bool = False) -> None:
        """Send this rank's final report, wait for the other ranks' reports, and print the summary.

        Args:
            failed: True if the process exits because of an exception. No summary is printed then.
        """
        self._send_steps(last=True)
        enough = self._own.completed >= LEAST_STEPS
        some = self._own.completed >= _SOME if self._combined is None else enough
        if self._job.size > 1 and self._engine.ended() is None:
            if some:
                if self._combined is not None:
                    self._bus.send("steps-last")
                self._over = self._acknowledged_in_time()
            if self._combined is not None and not self._over:
                self._bus.send("steps-heard")  # tell ranks to stop waiting for a reply to their final report
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        self._close_exporters()
        self._handlers.clear()  # break the reference cycle through the handlers, which would keep the engine alive
        if self._combined is not None and enough and not failed and self._settings.flag("HOROVOD_STATS_SUMMARY"):
            _print(f"[horovod] {self.job()['sentence']}")

    def _acknowledged_in_time(self) -> bool:
        """Wait for all ranks' final reports. Return False on timeout, or if a rank has left the job."""
        until = time.monotonic() + _PATIENCE
        while not self._acknowledged.wait(_SLICE):
            if self._engine.ended() is not None or time.monotonic() > until:
                return self._acknowledged.is_set()
        return True

    def _close_exporters(self) -> None:
        exporters, self._exporters = self._exporters, []
        for exporter in exporters:
            exporter.write()
            exporter.close()

    def leave_in_child(self) -> None:
        """Release files and ports in a forked child, which would otherwise keep them in use."""
        for exporter in self._exporters:
            exporter.leave_in_child()


def _worst(late: Any) -> dict[str, Any] | None:
    rank = late.worst()
    return None if rank is None else {"rank": rank, **late.of(rank)}


def _print(line: str) -> None:
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a closed stderr must not stop training
