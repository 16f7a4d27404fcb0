"""Autotune session of this process.

Starts the tuner on rank 0, writes its log, and stores its result. Other ranks only store the result, in case one of
them becomes rank 0 in a later epoch of an elastic job.
"""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horovod.common.autotune.search import Sample, Values
from horovod.common.autotune.tuner import FUSION, Tuner
from horovod.common.contract import private_files
from horovod.common.contract.log import make_sink
from horovod.common.contract.settings import LOG_LEVELS, TABLE, Settings
from horovod.common.frontends import Job
from horovod.common.telemetry.message_bus import MessageBus
from horovod.common.training_loop.gradients import bucket_tuning
from horovod.common.training_loop.steps import marks

if TYPE_CHECKING:
    from horovod._core import Engine
    from horovod.common.autotune import results

MESSAGE = "autotune"
"""Name of the message in which rank 0 sends its result to the other ranks."""

# Best values found so far for this job, and True if the search for them is complete.
_last_result: tuple[Values, bool] | None = None


def remember(rank: int, what: dict[str, Any]) -> None:
    """Store the result that rank 0 has sent in a message of type ``MESSAGE``."""
    global _last_result
    _last_result = what["values"], what["done"]


def begin(job: Job, engine: "Engine", settings: Settings, bus: MessageBus) -> "Session | None":
    """Start autotune on rank 0. Return None on other ranks and in jobs with one rank."""
    bucket_tuning.requested = None
    if job.rank != 0 or job.size == 1:
        return None
    return Session(job, engine, settings, bus, os.environ)


class Session:
    """Autotune session of one job on rank 0. Implements ``tuner.Report``."""

    def __init__(
        self, job: Job, engine: "Engine", settings: Settings, bus: MessageBus, environ: Mapping[str, str]
    ) -> None:
        """Start observing training steps.

        Args:
            job: The job.
            engine: Engine of the job.
            settings: Settings of this process.
            bus: Message bus to the other ranks.
            environ: Environment variables, used to find settings that the user has set.
        """
        self._job, self._engine, self._settings, self._bus = job, engine, settings, bus
        given = {s.name: environ[s.name].strip() for s in TABLE if environ.get(s.name, "").strip()}
        differs = [s for s in TABLE if s.agreed and settings.values[s.name] != s.default]
        self._agreed = {s.name: given[s.name] for s in differs if s.name in given}
        self._sink = make_sink(0, settings.flag("HOROVOD_LOG_HIDE_TIME"))
        self._shown = LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) <= LOG_LEVELS.index("warning")
        self._tuner: Tuner | None = Tuner(job, engine, settings, frozenset(given), self)
        self._log = self._open_log() if settings.flag("HOROVOD_AUTOTUNE") else None
        # True if an earlier epoch of the job has written the log file's header.
        self._header = _last_result is not None
        # Key of this job's cached result. Compute it before tuning, which renames PyTorch's gradient buckets.
        self._key: results.Key | None = None
        marks.also(self._stepped)

    def _stepped(self) -> None:
        if self._tuner is None:
            return
        try:
            self._tuner.stepped(time.perf_counter())
        except Exception as error:  # an autotune error must not stop training
            self._tuner = None
            if self._engine.ended() is None:
                self.say(f"stopped: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Stop autotune when the job's epoch ends. Logs a message if the search is incomplete."""
        tuner, self._tuner = self._tuner, None
        if tuner is not None and self._settings.flag("HOROVOD_AUTOTUNE") and not tuner.idle:
            if tuner.progress.tried or tuner.progress.initial:
                self.say(f"the search ended early, after {tuner.progress.tried} candidates; nothing was stored")
            else:
                self.say(
                    "the search ended before anything was measured; it needs more steps, marked by a distributed "
                    "optimizer or by hvd.step()"
                )
            if tuner.progress.initial is not None:
                self.row(tuner.progress.best, Sample(tuner.progress.seconds, 0.0), tuner.step_bytes)
        if self._log is not None:
            os.close(self._log)
            self._log = None

    # The methods below implement tuner.Report.

    def say(self, text: str) -> None:
        """Log one line of text on stderr."""
        if self._shown:
            self._sink(LOG_LEVELS.index("info"), f"autotune: {text}")

    def row(self, values: Values, sample: Sample, step_bytes: int) -> None:
        """Append one sample to the log file."""
        if self._log is None:
            return
        settings = self._settings
        fixed = {
            "hierarchical_allreduce": int(settings.flag("HOROVOD_HIERARCHICAL_ALLREDUCE")),
            "hierarchical_allgather": int(settings.flag("HOROVOD_HIERARCHICAL_ALLGATHER")),
            "torus_allreduce": int(settings.flag("HOROVOD_TORUS_ALLREDUCE")),
            "cache_enabled": int(settings.integer("HOROVOD_CACHE_CAPACITY") > 0),
            "cycle_time_ms": f"{settings.number('HOROVOD_CYCLE_TIME'):g}",
            "tensor_fusion_threshold": values.get(FUSION, settings.integer("HOROVOD_FUSION_THRESHOLD")),
            "score": f"{step_bytes / (sample.seconds * 1e6):.6g}",
            "step_ms": f"{sample.seconds * 1000:.4f}",
        }
        columns = {**fixed, **{name: value for name, value in values.items() if name != FUSION}}
        text = ",".join(map(str, columns.values())) + "\n"
        if not self._header:
            self._header = True
            text = ",".join(columns) + "\n" + text
        try:
            os.write(self._log, text.encode())
        except OSError as error:
            self._stop_log(error)

    def keep(self, values: Values, seconds: float, gain: float, finished: bool) -> None:
        """Send the best values to the other ranks. Cache them if the search is complete."""
        self._bus.send(MESSAGE, values=values, done=finished)
        if not finished or self._key is None:
            return
        from horovod.common.autotune import results

        result = results.Result(
            results.FORMAT,
            self._key,
            values,
            seconds * 1000,
            gain,
            self._tuner.step_bytes if self._tuner else 0,
            time.time(),
        )
        try:
            self.say(f"stored in {results.store(result)}; HOROVOD_AUTOTUNE_REUSE=1 uses it in the next job")
        except OSError as error:
            self.say(f"the result was not stored: {error}")

    def find(self, initial: Values) -> tuple[Values, bool] | None:
        """Return the best values found by this job, or else those cached for this model, hosts and settings."""
        from horovod.common.autotune import results

        model = int(self._engine.stats()["period_hash"])
        if model:  # the hash of repeating operations identifies the model, and is 0 until steps repeat
            self._key = results.Key(f"{model:016x}", list(self._job.hosts), self._agreed)
        if _last_result is not None or not self._settings.flag("HOROVOD_AUTOTUNE_REUSE"):
            return _last_result
        found = results.load(self._key) if self._key is not None else None
        if found is None or found.values.keys() != initial.keys():
            self.say("no stored result fits this model, these hosts and settings")
            return None
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.time))
        text = ", ".join(f"{name}={value}" for name, value in found.values.items())
        self.say(f"using the result of {when} ({found.gain:.1%} less time per step): {text}")
        return found.values, True

    def _open_log(self) -> int | None:
        path = self._settings.text("HOROVOD_AUTOTUNE_LOG")
        if not path:
            return None
        try:
            descriptor = private_files.open_file(path, os.O_WRONLY | os.O_APPEND, mode=0o644)
            if _last_result is None:  # append, to keep the log lines of earlier epochs of this job
                os.ftruncate(descriptor, 0)
            return descriptor
        except OSError as error:
            self.say(f"the log file {path} is not written: {error.strerror or error}")
            return None

    def _stop_log(self, error: OSError) -> None:
        assert self._log is not None
        os.close(self._log)
        self._log = None
        self.say(f"the log file is not written any further: {error.strerror or error}")
