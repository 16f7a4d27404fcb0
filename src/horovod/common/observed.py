"""Telemetry startup, shutdown and queries, shared by all frontends."""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.frontends import Frontend, Job, state
from horovod.common.telemetry.telemetry import Telemetry
from horovod.common.training_loop.observations import training
from horovod.common.training_loop.steps import marks

if TYPE_CHECKING:
    from horovod._core import Engine
    from horovod.common.autotune.session import Session

_telemetry: Telemetry | None = None
_autotune: "Session | None" = None


def begin(job: Job, engine: "Engine", settings: Settings, link: Callable[[], float | None]) -> None:
    """Start the telemetry of a job. If that fails, log a warning and continue without telemetry.

    Args:
        job: The job that begins.
        engine: Engine of the job.
        settings: Settings of this process.
        link: Function that returns the measured bandwidth of a link in bytes per second, or None.
    """
    global _telemetry, _autotune
    try:
        if settings.flag("HOROVOD_AUTOTUNE") or settings.flag("HOROVOD_AUTOTUNE_REUSE"):
            from horovod.common.autotune import session  # import autotune only if needed, because few jobs use it

            _telemetry = Telemetry(job, engine, settings, link, {session.MESSAGE: session.remember})
            _autotune = session.begin(job, engine, settings, _telemetry.bus)
        else:
            _telemetry = Telemetry(job, engine, settings, link, {})
    except Exception as error:  # telemetry cannot start, for example, if no more threads or descriptors are available
        marks.close()
        training.close()
        warner(job.rank, settings)(
            f"this rank is not observed (no reports, figures or timeline of it): {type(error).__name__}: {error}"
        )


class Leaving:
    """Closes the telemetry of a job that is shutting down. Errors are logged and do not prevent the shutdown."""

    def __init__(self, telemetry: Telemetry | None, autotune: "Session | None") -> None:
        self._telemetry, self._autotune = telemetry, autotune

    def close(self, failed: bool) -> None:
        """Close the telemetry before the engine shuts down.

        ``failed`` is True if this process exits because of an exception.
        """
        if self._autotune is not None:
            _unless_it_fails(self._autotune.close)
        telemetry = self._telemetry
        if telemetry is not None:
            _unless_it_fails(lambda: telemetry.close(failed))

    def finish(self) -> None:
        """Finish closing the telemetry, after the engine has shut down."""
        if self._telemetry is not None:
            _unless_it_fails(self._telemetry.finish)


def _unless_it_fails(observing: Callable[[], None]) -> None:
    try:
        observing()
    except Exception as error:
        logging.getLogger("horovod").warning("telemetry: %s: %s", type(error).__name__, error)


def take() -> Leaving:
    """Detach and return the telemetry of a job that is shutting down."""
    global _telemetry, _autotune
    leaving = Leaving(_telemetry, _autotune)
    _telemetry = _autotune = None
    return leaving


def leave_in_child() -> None:
    """Drop the state of the telemetry in a forked child."""
    global _telemetry, _autotune
    _autotune = None
    if _telemetry is not None:
        _telemetry.leave_in_child()
    _telemetry = None  # a forked child has no telemetry threads, so it has no telemetry
    marks.close()
    training.close()


def _observers() -> Telemetry:
    """Return the telemetry of this job.

    Raises:
        HorovodInternalError: If called in a forked child, which knows its rank but is not in the job.
        RuntimeError: If the telemetry could not be started.
    """
    if _telemetry is None:
        state.require_engine()
        raise RuntimeError("this rank is not observed: that could not be begun when hvd.init() was called")
    return _telemetry


class Observed:
    """One frontend's API for the job's statistics, timeline and flight recorder."""

    _frontend: Frontend

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Start writing this rank's operations to a timeline file, which trace viewers can open (docs/timeline.md).

        A timeline that is already running is stopped first. Each rank decides independently whether to call this.

        Args:
            file_path: Path on rank 0. Other ranks insert ".rank1", ".rank2" and so on before the suffix.
            mark_cycles: True to also mark the times at which the engine receives operations.

        Raises:
            ValueError: If Horovod is not initialized, or if HOROVOD_TIMELINE was not set at ``init``. Set it to
                DYNAMIC to have no timeline before this call.
            OSError: If the file cannot be written or another process is writing it.
        """
        self._frontend.require_job()
        _observers().timelines.start(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Stop this rank's timeline and complete its file. Does nothing if no timeline is running.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        self._frontend.require_job()
        if _telemetry is not None:
            _telemetry.timelines.stop()

    def dump(self, directory: "str | os.PathLike[str] | None" = None) -> str:
        """Write this rank's most recent operations (flight recorder) to ``recorder.rankN.jsonl``. Thread-safe.

        ``python -m horovod.recorder diff`` compares the files of several ranks.

        Args:
            directory: Target directory, created if missing. Default: the job's directory in HOROVOD_REPORT_DIR.

        Returns:
            Path of the file.

        Raises:
            ValueError: If Horovod is not initialized, or if HOROVOD_RECORDER_ENTRIES is 0.
            HorovodInternalError: If called in a forked child.
            OSError: If the file cannot be written. The message names the path.
        """
        self._frontend.require_job()
        return _observers().dump(directory)

    def step(self) -> None:
        """Mark the end of a training step.

        Call this if the program has no distributed optimizer, or if training steps differ from optimizer steps. From
        the first call on, only these calls count as steps. All ranks must make the same number of calls.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        self._frontend.require_job()
        marks.tell()

    def stats(self) -> dict[str, Any]:
        """Return how this rank spends the time of a step, as means since ``init`` without the first three steps.

        See docs/slow.md. Times are in seconds per step, or None if not measured. Keys:

        - "rank", "size"
        - "made": number of steps so far; "steps": number of steps that the means include
        - "step_seconds": the sum of "data_seconds" (waiting for PyTorch's DataLoader), "exposed_seconds" (blocked by
          communication, including waiting for other ranks) and "compute_seconds" (the rest)
        - "collective_seconds": time in collectives; "hidden_seconds": the part that overlaps computation
        - "efficiency": fraction of the step that is not exposed
        - "bytes", "operations", "tensors"
        - "bandwidth": bytes per second over this rank's links during collectives; "link_share": the bandwidth as a
          fraction of the calibrated bandwidth
        - "pauses", "paused_seconds": interruptions that are not part of a step
        - "reported": values passed to ``report``
        - "noise_scale", on rank 0 with PyTorch's ``DistributedOptimizer``: the gradient noise scale in "workers" of
          this batch size, with the bounds "low" and "high" of its interval, the number of "samples", the "batch" of a
          worker and the scale in "examples" (None if the batch is unknown). None until the bounds are within a factor
          of two
        - "job", on rank 0 only: the same values as means over all ranks, which report about once a second. Also "last"
          ({"rank", "share", "seconds"}: the rank that came last most often, the fraction of steps in which it came
          last, and its lateness; None if that could be chance), "lately" (about the last second), "link_bandwidth",
          "sentence" and "ranks" (a list with each rank's values and its "late")

        Raises:
            ValueError: If Horovod is not initialized.
        """
        self._frontend.require_job()
        return _observers().account.stats()

    def report(self, **values: Any) -> None:
        """Report values from the program, as in ``hvd.report(loss=loss.item())``.

        The numbers appear in ``stats()``, on the live page, in the metrics file and on the metrics port. A new value
        replaces an earlier one with the same name. If a number is on a GPU, the call waits until it is available.

        Raises:
            ValueError: If Horovod is not initialized, if a value is not a number, or if there are more than 100 names.
        """
        self._frontend.require_job()
        _observers().account.report(values)

    def log_stats(self, to: Any, step: int | None = None) -> None:
        """Write ``stats()`` as scalars "horovod/...". Rank 0 writes the job's values, and other ranks their own values.

        Args:
            to: A PyTorch SummaryWriter, a ``tf.summary`` writer, the module ``mlflow``, or any other object with
                ``add_scalar``, ``as_default`` or ``log_metrics``.
            step: Step number of the scalars. Default: the number of steps made.

        Raises:
            ValueError: If Horovod is not initialized, or if ``to`` is not such an object.
        """
        from horovod.common.telemetry import exporters

        stats = self.stats()
        exporters.send(to, exporters.scalars(stats), stats["made"] if step is None else step)
