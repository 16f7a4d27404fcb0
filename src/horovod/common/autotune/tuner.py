"""Tuner on rank 0 that measures step times and changes settings between steps.

The training thread calls ``Tuner.stepped`` at the end of each step. After a change, the ranks leave the running
schedule and adopt a new one after two equal steps (core/agree/schedule.h). The tuner waits for the new schedule, skips
one more step, and then measures. ``stepped`` itself never blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from horovod.common.autotune.search import LEAST_GAIN, Measuring, Parameter, Progress, Sample, Values, search
from horovod.common.contract.settings import Settings
from horovod.common.frontends import Job
from horovod.common.telemetry.steps import median
from horovod.common.training_loop.gradients import BucketSizes, bucket_tuning

if TYPE_CHECKING:
    from horovod._core import Engine

FUSION, BUCKET, SMALL = "fusion_bytes", "bucket_bytes", "small_bytes"
"""Names of parameters that are not size thresholds of the engine (``_core.tuning``)."""
MAX_FUSION = 16 << 20
"""Maximum bytes of an operation in a schedule (``kBucketBytes`` in core/agree/coordinator.cc)."""

# Maximum number of steps to wait for a new schedule of operations. Ranks whose steps differ never agree on one.
_SCHEDULE_STEPS = 20
# Minimum seconds between progress lines.
_PROGRESS_SECONDS = 10.0
# Number of steps in each measurement window after tuning.
_WINDOW = 50
# Relative change in step time that triggers a new search.
_DRIFT = 0.15
# Tuning restarts after this many consecutive windows with a changed step time. The number doubles with each search.
_DRIFT_WINDOWS = 4


class Report(Protocol):
    """Interface that receives the tuner's log lines and results."""

    def say(self, text: str) -> None:
        """Print one line of text for the user."""

    def row(self, values: Values, sample: Sample, step_bytes: int) -> None:
        """Append one sample to the log file."""

    def keep(self, values: Values, seconds: float, gain: float, finished: bool) -> None:
        """Store values for later epochs of the job and, if ``finished`` is True, for later jobs."""

    def find(self, initial: Values) -> tuple[Values, bool] | None:
        """Return values found by this job or an earlier one, and True if the search that found them was complete.

        Called once, before any setting changes. Returns None if no values were found.
        """


@dataclass(frozen=True)
class Plan:
    """Parameters to tune, and their initial values."""

    initial: Values
    parameters: list[Parameter]


def make_plan(job: Job, fixed: frozenset[str], threshold: int, tuning: Values, step_bytes: int, buckets: bool) -> Plan:
    """Choose the parameters to tune.

    Args:
        job: The job.
        fixed: Names of variables that the user has set. The corresponding settings are not tuned.
        threshold: Configured fusion threshold in bytes.
        tuning: Configured size thresholds of the engine in bytes.
        step_bytes: Number of bytes that a step reduces.
        buckets: True if PyTorch's gradients are in buckets of the default sizes.
    """
    initial: Values = {}
    parameters: list[Parameter] = []

    def add(name: str, value: int, low: int, high: int, first: int = 0) -> None:
        if low < high:
            initial[name] = min(value, high)
            parameters.append(Parameter(name, low, high, first))

    # A threshold larger than a step's total bytes has no additional effect.
    largest = 1 << max(step_bytes - 1, 0).bit_length()
    if "HOROVOD_FUSION_THRESHOLD" not in fixed:
        add(FUSION, threshold, 64 << 10, min(MAX_FUSION, largest), largest // 4)
    if buckets:
        add(BUCKET, BucketSizes().bucket, 64 << 10, min(64 << 20, largest))
        add(SMALL, BucketSizes().small, 4 << 10, min(16 << 20, largest))
    if not fixed & {"HOROVOD_TUNING", "HOROVOD_ALGORITHM"}:
        if job.local_size > 1:
            add("chunk_bytes", tuning["chunk_bytes"], 16 << 10, 1 << 20)
        if job.cross_size > 1:  # on a host with several ranks, each rank reduces one slice of the data
            prefix, slices = ("", 1) if job.local_size == 1 else ("slice_", job.local_size)
            name = prefix + ("pair_bytes" if job.cross_size == 2 else "doubling_bytes")
            add(name, tuning[name], 1 << 10, min(16 << 20, largest // slices))
    return Plan(initial, parameters)


class Tuner:
    """Tuner for one job. Exists only on rank 0."""

    def __init__(self, job: Job, engine: "Engine", settings: Settings, fixed: frozenset[str], report: Report) -> None:
        """Create a tuner. Settings stay unchanged until the first steps have been measured.

        Args:
            job: The job.
            engine: Engine of the job.
            settings: Settings of this process.
            fixed: Names of the settings that the user has set.
            report: Object that receives the tuner's log lines and results.
        """
        from horovod import _core

        self._job, self._engine, self._fixed, self._report = job, engine, fixed, report
        self._threshold = settings.integer("HOROVOD_FUSION_THRESHOLD")
        self._tuning = _core.tuning(engine.tuning)
        self._steps = settings.integer("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE")
        self._warm_up = settings.integer("HOROVOD_AUTOTUNE_WARMUP_SAMPLES") * self._steps
        self._max_candidates = settings.integer("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES")
        self._searches = settings.flag("HOROVOD_AUTOTUNE")
        self._plan = Plan({}, [])
        self.progress = Progress({})
        self._measuring: Measuring | None = None
        self._next: Callable[[float], None] = self._starting
        self._now = 0.0
        self._times: list[float] = []
        self._values: Values = {}
        self._waited = self._schedules = 0
        self._first_bytes = 0
        self.step_bytes = 0
        """Bytes that a step reduces on this rank, measured before the search."""
        self._last_report = 0.0
        # Usual step time after tuning, in seconds.
        self._usual = 0.0
        self._drifted, self._patience = 0, _DRIFT_WINDOWS

    def stepped(self, now: float) -> None:
        """Handle the end of a step at time ``now`` in seconds. Called by the training thread."""
        seconds, self._now = now - self._now, now
        self._next(seconds)

    @property
    def idle(self) -> bool:
        """True if no search is running and none will start automatically."""
        return self._measuring is None and self._next not in (self._starting, self._warming)

    # Each method below implements one state of the tuner's state machine, and handles a step that has just ended.

    def _starting(self, seconds: float) -> None:
        self._waited += 1
        stats = self._engine.stats()
        self._first_bytes = self._first_bytes or int(stats["bytes"])
        if self._waited < 3 or (not stats["schedules"] and self._waited < _SCHEDULE_STEPS):
            return
        self.step_bytes = (int(stats["bytes"]) - self._first_bytes) // (self._waited - 1)
        self._plan = make_plan(
            self._job, self._fixed, self._threshold, self._tuning, self.step_bytes, bucket_tuning.used
        )
        self.progress = Progress(dict(self._plan.initial))
        self._values = self._plan.initial
        found, complete = self._report.find(self._plan.initial) or ({}, False)
        self.progress.best.update({name: value for name, value in found.items() if name in self.progress.best})
        if complete:
            self._apply(self.progress.best)
            self._watch()
        elif self._searches and self._plan.parameters:
            self._next = self._warming
        else:
            if self._searches:
                self._report.say("there is nothing to tune: the settings that matter for this job are set by the user")
            self._next = self._idle

    def _warming(self, seconds: float) -> None:
        self._waited += 1
        if self._waited >= self._warm_up:
            self._search()

    def _idle(self, seconds: float) -> None:
        pass

    def _settling(self, seconds: float) -> None:
        self._waited += 1
        scheduled = int(self._engine.stats()["schedules"]) > self._schedules
        if scheduled or self._waited >= _SCHEDULE_STEPS:
            self._next = self._first_step

    def _first_step(self, seconds: float) -> None:
        self._times = []
        self._next = self._sampling

    def _sampling(self, seconds: float) -> None:
        self._times.append(seconds)
        if len(self._times) < self._steps:
            return
        sample = Sample.of(self._times)
        self._report.row(self._values, sample, self.step_bytes)
        assert self._measuring is not None
        before = dict(self.progress.best)
        try:
            values = self._measuring.send(sample)
        except StopIteration:
            self._finish()
            return
        if self.progress.best != before:
            self._report.keep(self.progress.best, self.progress.seconds, 0.0, False)
        self._say_progress()
        self._apply(values)

    def _watching(self, seconds: float) -> None:
        self._times.append(seconds)
        if len(self._times) < _WINDOW:
            return
        now, self._times = median(self._times), []
        self._usual = self._usual or now
        self._drifted = self._drifted + 1 if abs(now / self._usual - 1) > _DRIFT else 0
        if self._drifted >= self._patience and self._searches:
            self._patience *= 2
            self._report.say(
                f"a step has taken {_ms(now)} lately instead of {_ms(self._usual)}; tuning again from these settings"
            )
            self.progress = Progress(dict(self.progress.best))
            self._search()

    def _search(self) -> None:
        self._report.say(
            f"tuning {', '.join(p.name for p in self._plan.parameters)} of steps that reduce "
            f"{self.step_bytes / 2**20:.1f} MiB: at most {self._max_candidates} candidates, each measured over up to "
            f"4 x {self._steps} steps next to the settings in use"
        )
        self._last_report = self._now
        self._measuring = search(self.progress, self._plan.parameters, self._max_candidates)
        self._apply(next(self._measuring))

    def _apply(self, values: Values) -> None:
        """Apply these values. They take full effect only after the ranks have adopted a new schedule."""
        self._schedules = int(self._engine.stats()["schedules"])
        self._waited = 0
        self._next = self._settling
        if values == self._values:
            self._next = self._first_step
            return
        threshold = values.get(FUSION, self._threshold)
        if threshold == self._plan.initial.get(FUSION):
            threshold = self._threshold
        if BUCKET in values and SMALL in values:
            bucket_tuning.requested = BucketSizes(values[BUCKET], values[SMALL])
        sizes = {**self._tuning, **{name: value for name, value in values.items() if name in self._tuning}}
        self._engine.retune(threshold, ",".join(f"{name}={value}" for name, value in sizes.items()))
        self._values = values

    def _finish(self) -> None:
        progress, initial = self.progress, self._plan.initial
        self._measuring = None
        assert progress.initial is not None
        changed = [f"{name}={value}" for name, value in progress.best.items() if value != initial[name]]
        if changed and progress.gain:
            self._report.say(
                f"done after {progress.tried} candidates: a step takes {_ms(progress.seconds)} instead of "
                f"{_ms(progress.seconds / (1 - progress.gain))} ({progress.gain:.1%} less) with {', '.join(changed)}"
            )
        else:
            self._report.say(
                f"done after {progress.tried} candidates: none was faster than the settings in use by more than the "
                f"noise and {LEAST_GAIN:.0%}; a step takes {_ms(progress.seconds)}"
            )
        self._report.row(progress.best, Sample(progress.seconds, 0.0), self.step_bytes)
        self._report.keep(progress.best, progress.seconds, progress.gain, True)
        self._apply(progress.best)
        self._watch()

    def _watch(self) -> None:
        self._times, self._usual, self._drifted = [], 0.0, 0
        self._next = self._watching

    def _say_progress(self) -> None:
        if self._now - self._last_report >= _PROGRESS_SECONDS:
            self._last_report = self._now
            self._report.say(
                f"{self.progress.tried} of at most {self._max_candidates} candidates measured; a step takes "
                f"{_ms(self.progress.seconds)}"
            )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
