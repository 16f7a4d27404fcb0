"""Start and end of a job's observers, and queries of their data, shared by all frontends."""

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

_telemetry: Telemetry | None = None  # observers of the current job
_autotune: "Session | None" = None


def begin(job: Job, engine: "Engine", settings: Settings, link: Callable[[], float | None]) -> None:
    """Start the observers of a job. If that fails, log a warning; the job continues without them.

    Args:
        job: The job that begins.
        engine: Its engine.
        settings: Settings of this process.
        link: Returns the measured bandwidth of a link in bytes per second, or None.
    """
    global _telemetry, _autotune
    try:
        if settings.flag("HOROVOD_AUTOTUNE") or settings.flag("HOROVOD_AUTOTUNE_REUSE"):
            from horovod.common.autotune import session  # not imported by jobs that do not use it

            _telemetry = Telemetry(job, engine, settings, link, {session.MESSAGE: session.remember})
            _autotune = session.begin(job, engine, settings, _telemetry.bus)
        else:
            _telemetry = Telemetry(job, engine, settings, link, {})
    except Exception as error:  # for example because of too many threads or open descriptors
        marks.close()
        training.close()
        warner(job.rank, settings)(
            f"this rank is not observed (no reports, figures or timeline of it): {type(error).__name__}: {error}"
        )


class Leaving:
    """Observers of a job that is ending. Their errors are logged and do not prevent its end."""

    def __init__(self, telemetry: Telemetry | None, autotune: "Session | None") -> None:
        self._telemetry, self._autotune = telemetry, autotune

    def close(self, failed: bool) -> None:
        """Close the observers before the engine's shutdown. ``failed``: True if an exception ends this process."""
        if self._autotune is not None:
            _unless_it_fails(self._autotune.close)
        telemetry = self._telemetry
        if telemetry is not None:
            _unless_it_fails(lambda: telemetry.close(failed))

    def finish(self) -> None:
        """Finish after the engine's shutdown."""
        if self._telemetry is not None:
            _unless_it_fails(self._telemetry.finish)


def _unless_it_fails(observing: Callable[[], None]) -> None:
    try:
        observing()
    except Exception as error:
        logging.getLogger("horovod").warning("telemetry: %s: %s", type(error).__name__, error)


def take() -> Leaving:
    """Return the observers and forget them, because the job is ending."""
    global _telemetry, _autotune
    leaving = Leaving(_telemetry, _autotune)
    _telemetry = _autotune = None
    return leaving


def leave_in_child() -> None:
    """Release and forget the observers; called in a forked child."""
    global _telemetry, _autotune
    _autotune = None
    if _telemetry is not None:
        _telemetry.leave_in_child()
    _telemetry = None  # the observers' threads exist only in the parent
    marks.close()
    training.close()


def _observers() -> Telemetry:
    """Return the observers of this job.

    Raises:
        HorovodInternalError: In a forked child, which knows its rank but is not in the job.
        RuntimeError: If the job could not be observed.
    """
    if _telemetry is None:
        state.require_engine()
        raise RuntimeError("this rank is not observed: that could not be begun when hvd.init() was called")
    return _telemetry


class Observed:
    """Queries about the observed job, for one frontend."""

    _face: Frontend

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Start writing this rank's operations to a timeline file that trace viewers open (docs/timeline.md).

        A timeline that is already running is stopped first. Each rank decides independently whether to call this.

        Args:
            file_path: Path on rank 0. Other ranks insert ".rank1", ... before the suffix.
            mark_cycles: If True, also mark the times at which the engine receives operations.

        Raises:
            ValueError: If not initialized, or if HOROVOD_TIMELINE was not set at ``init``. Set it to DYNAMIC to have no
                timeline before this call.
            OSError: If the file cannot be written or another process is writing it.
        """
        self._face.require_job()
        _observers().timelines.start(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Stop this rank's timeline and complete its file. Idempotent.

        Raises:
            ValueError: If not initialized.
        """
        self._face.require_job()
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
            ValueError: If not initialized, or if HOROVOD_RECORDER_ENTRIES is 0.
            HorovodInternalError: In a forked child.
            OSError: If the file cannot be written. The message names the path.
        """
        self._face.require_job()
        return _observers().dump(directory)

    def step(self) -> None:
        """Mark the end of a training step.

        Use it if the program has no distributed optimizer, or if its steps are not the optimizer's steps. After the
        first call, only these marks count. All ranks must call it the same number of times.

        Raises:
            ValueError: If not initialized.
        """
        self._face.require_job()
        marks.tell()

    def stats(self) -> dict[str, Any]:
        """Return how this rank's time per step is spent, as means since ``init`` without the first three steps.

        See docs/slow.md. Times are in seconds per step; None if not measured. Keys:

        - "rank", "size"
        - "made": number of steps so far; "steps": number of steps that the means include
        - "step_seconds", the sum of "data_seconds" (waiting for PyTorch's DataLoader), "exposed_seconds" (blocked by
          communication, including waiting for other ranks) and "compute_seconds" (the rest)
        - "collective_seconds": time in collectives; "hidden_seconds": the part that overlaps computation
        - "efficiency": fraction of the step that is not exposed
        - "bytes", "operations", "tensors"
        - "bandwidth": bytes per second over this rank's links during collectives; "link_share": the same as a fraction
          of the calibrated bandwidth
        - "pauses", "paused_seconds": interruptions that are not part of a step
        - "reported": values passed to ``report``
        - "noise_scale", on rank 0 with PyTorch's ``DistributedOptimizer``: the gradient noise scale in "workers" of
          this batch size, with the bounds "low" and "high" of its interval, the number of "samples", the "batch" of a
          worker and the scale in "examples" (None if the batch is unknown). None until the bounds are within a factor
          of two
        - "job", on rank 0 only: the same values as means over all ranks, which report about once a second. Also "last"
          ({"rank", "share", "seconds"}: the rank that most often came last, the fraction of steps in which it did, and
          how late it was; None if that could be chance), "lately" (about the last second), "link_bandwidth", "sentence"
          and "ranks" (a list with each rank's values and its "late")

        Raises:
            ValueError: If not initialized.
        """
        self._face.require_job()
        return _observers().account.stats()

    def report(self, **values: Any) -> None:
        """Report numbers of the program, as in ``hvd.report(loss=loss.item())``.

        They appear in ``stats()``, on the live page, in the metrics file and on the metrics port. A new value replaces
        an earlier one of the same name. If a number is on a GPU, the call waits until it is available.

        Raises:
            ValueError: If not initialized, if a value is not a number, or if there are more than 100 names.
        """
        self._face.require_job()
        _observers().account.report(values)

    def log_stats(self, to: Any, step: int | None = None) -> None:
        """Write values of ``stats()`` as scalars "horovod/...". Rank 0 writes values of the job, others their own.

        Args:
            to: A PyTorch SummaryWriter, a ``tf.summary`` writer or the module ``mlflow`` (anything with ``add_scalar``,
                ``as_default`` or ``log_metrics``).
            step: Step number of the scalars. Default: the number of steps made.

        Raises:
            ValueError: If not initialized or ``to`` is none of these.
        """
        from horovod.common.telemetry import exporters

        stats = self.stats()
        exporters.send(to, exporters.scalars(stats), stats["made"] if step is None else step)
