"""What observes the job of this process, and what programs ask of that: the same for every face."""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.faces import Face
from horovod.common.state import Job, state
from horovod.common.steps import marks
from horovod.common.telemetry.telemetry import Telemetry
from horovod.common.training import training

if TYPE_CHECKING:
    from horovod._core import Engine

_telemetry: Telemetry | None = None  # of the job that runs


def begin(job: Job, engine: "Engine", settings: Settings, link: Callable[[], float | None]) -> None:
    """A job begins, with this engine. ``link``: what a link was measured to carry, in bytes a second, if it was.

    Where that fails the job goes on unobserved, after a warning.
    """
    global _telemetry
    try:
        _telemetry = Telemetry(job, engine, settings, link)
    except Exception as error:  # no more threads or descriptors for this process, perhaps
        marks.close()
        training.close()
        warner(job.rank, settings)(
            f"this rank is not observed (no reports, figures or timeline of it): {type(error).__name__}: {error}"
        )


class Leaving:
    """What has observed a job that ends; it does not keep the job from ending."""

    def __init__(self, telemetry: Telemetry | None) -> None:
        self._telemetry = telemetry

    def close(self, failed: bool) -> None:
        """Before the engine's shutdown. ``failed``: an exception ends this process."""
        telemetry = self._telemetry
        if telemetry is not None:
            _unless_it_fails(lambda: telemetry.close(failed))

    def finish(self) -> None:
        """After it."""
        if self._telemetry is not None:
            _unless_it_fails(self._telemetry.finish)


def _unless_it_fails(observing: Callable[[], None]) -> None:
    try:
        observing()
    except Exception as error:
        logging.getLogger("horovod").warning("telemetry: %s: %s", type(error).__name__, error)


def take() -> Leaving:
    """The job ends, and nobody asks any more."""
    global _telemetry
    taken, _telemetry = _telemetry, None
    return Leaving(taken)


def leave_in_child() -> None:
    """In a forked child, where its threads do not exist."""
    global _telemetry
    if _telemetry is not None:
        _telemetry.leave_in_child()
    _telemetry = None  # its threads are the parent's
    marks.close()
    training.close()


def _observers() -> Telemetry:
    """Raises HorovodInternalError in a forked child, which knows its place, but has no job; RuntimeError where the job
    could not be observed."""
    if _telemetry is None:
        state.require_engine()
        raise RuntimeError("this rank is not observed: that could not be begun when hvd.init() was called")
    return _telemetry


class Observed:
    """Those questions, for one face."""

    _face: Face

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Writes what this rank's operations do from now on to a file that trace viewers open (docs/timeline.md): on
        rank 0 ``file_path``, on the others its name with ".rank1", ... before the suffix. A timeline that runs ends.
        ``mark_cycles``: marks where the engine gets something to do. Each rank calls it for itself, or does not.

        Raises ValueError when not initialised, and when HOROVOD_TIMELINE was not set at ``init`` (DYNAMIC: no timeline
        until this is called); OSError when the file cannot be written or another process writes it.
        """
        self._face.require_job()
        _observers().timelines.start(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Ends the timeline of this rank; its file is complete then. May be repeated; ValueError when not
        initialised."""
        self._face.require_job()
        if _telemetry is not None:
            _telemetry.timelines.stop()

    def dump(self, directory: "str | os.PathLike[str] | None" = None) -> str:
        """Writes what this rank's flight recorder has, its last operations, to ``recorder.rankN.jsonl``, and returns
        the file's path. Any thread.

        ``directory``: where to, made if it is missing; default: the job's folder in HOROVOD_REPORT_DIR.
        ``python -m horovod.recorder diff`` compares the files of several ranks.

        Raises ValueError when not initialised or where HOROVOD_RECORDER_ENTRIES is 0, HorovodInternalError in a forked
        child, OSError naming the path when it cannot be written.
        """
        self._face.require_job()
        return _observers().dump(directory)

    def step(self) -> None:
        """A step of training ends here: for programs without a distributed optimizer, whose steps are found without
        it, or whose steps are others than the optimizer's. From the first call on only these count. All ranks call it
        equally often. ValueError when not initialised."""
        self._face.require_job()
        marks.tell()

    def stats(self) -> dict[str, Any]:
        """Where the steps of this rank went, as means since ``init`` without the first three, and on rank 0 under "job"
        those of all ranks. Times in seconds, a step each; None for what is not measured. See docs/slow.md.

        "rank", "size", "made" (steps so far), "steps" (that are counted), "step_seconds" and its parts: "data_seconds"
        (the program waited for PyTorch's DataLoader), "exposed_seconds" (it was blocked by communication, waiting for
        others included), "compute_seconds" (the rest); "hidden_seconds": collectives beside computing;
        "collective_seconds": all of them; "efficiency": share of the step that is not exposed; "bytes", "operations",
        "tensors"; "bandwidth" (bytes a second over this rank's links within collectives), "link_share" (of what a
        calibration has measured); "pauses", "paused_seconds": what was no step; "reported": values of ``report``.

        "job": the same as means over ranks, "last" ({"rank", "share", "seconds"}: which rank came last most often, in
        what share of steps, by how much; None unless that is more often than chance explains), "lately" (the last
        second or so), "link_bandwidth", "sentence", "ranks"
        (a list of them, each with its "late"). Others tell rank 0 about once a second.

        ValueError when not initialised.
        """
        self._face.require_job()
        return _observers().account.stats()

    def report(self, **values: Any) -> None:
        """Numbers of the program's own (``hvd.report(loss=loss.item())``), for ``stats()``, the live page, the file and
        the port of figures. The last value of each name counts. Numbers of a GPU are waited for.

        Raises ValueError naming what is no number, for more than 100 names, and when not initialised.
        """
        self._face.require_job()
        _observers().account.report(values)

    def log_stats(self, to: Any, step: int | None = None) -> None:
        """Writes figures of ``stats()``, of the job on rank 0 and of this rank on others, as scalars "horovod/...":
        ``to`` is a SummaryWriter of PyTorch, a writer of ``tf.summary``, or the module ``mlflow`` (anything with
        ``add_scalar``, ``as_default`` or ``log_metrics``). ``step``: their place, default the number of steps made.

        Raises ValueError for another ``to`` and when not initialised.
        """
        from horovod.common.telemetry import scalars

        stats = self.stats()
        scalars.send(to, scalars.scalars(stats), stats["made"] if step is None else step)
