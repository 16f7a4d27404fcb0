"""`horovod.spark.run`: a job of a fixed size in a barrier stage, whose tasks all start at once or not at all."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from horovod.runner.cluster import Call, Gathering, run_fixed
from horovod.runner.function.worker_error import WorkerError, worker_error
from horovod.spark import arguments
from horovod.spark.application import Application, Jobs, words
from horovod.spark.task import attend_barrier

_REASON_SECONDS = 3.0  # time for Spark to report why a task was lost


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Collection[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on `num_proc` ranks, each in a task of the active Spark application.

    Ranks of a host are consecutive, and task 0 has rank 0. A KeyboardInterrupt ends the job. Several jobs may run at
    the same time, each called from a different thread.

    Args:
        fn: Function that each rank calls. It, its arguments and its results are serialized with cloudpickle.
        args: Positional arguments of `fn`.
        kwargs: Keyword arguments of `fn`.
        num_proc: Number of ranks. Default: spark.default.parallelism.
        start_timeout: Seconds for all tasks to start. Default: HOROVOD_SPARK_START_TIMEOUT.
        use_mpi: Must not be True: ranks on Spark are not started by mpirun.
        use_gloo: Accepted for compatibility; has no effect.
        extra_mpi_args: Must be None.
        env: Environment variables of the ranks, which override those of the executors. The driver's HOROVOD_*
            variables are passed to the ranks, too.
        stdout: Text stream for the ranks' standard output, each line prefixed with its rank. Default: the driver's.
        stderr: Text stream for the ranks' standard error, likewise.
        verbose: 2 reports more about the job.
        nics: Network interfaces for the ranks and the driver.
        prefix_output_with_timestamp: Whether lines of output begin with the time.
        executable: Python interpreter of the ranks. Default: that of the executors.

    Returns:
        The results, by rank.

    Raises:
        RuntimeError: If there is no active SparkContext.
        TimeoutError: If the job does not start in time. The message says what was missing.
        ValueError, TypeError: If an argument is invalid, for example more ranks than the application can ever run.
        WorkerError: If a rank fails, or a task or its executor is lost, which ends the job.
    """
    if use_mpi:
        raise ValueError(
            "use_mpi=True is given, but ranks on Spark are started by its tasks, not by mpirun; accepted is "
            "use_gloo=True, or neither"
        )
    if extra_mpi_args is not None:
        raise ValueError(f"extra_mpi_args is {extra_mpi_args!r}, but Spark's tasks do not use MPI; accepted is None")
    application = Application()
    size = arguments.count("num_proc", num_proc, application.context.defaultParallelism)
    wishes = arguments.wishes(
        env=env,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        nics=nics,
        timestamp=prefix_output_with_timestamp,
        timeout=arguments.start_timeout(start_timeout),
        executable=executable,
    )
    application.check(size, "num_proc")
    call = Call(fn, args, kwargs)
    with Gathering("Spark task", wishes.nics, arguments.ports()) as gathering:
        stage = _Stage(application, gathering, size)
        with Jobs(application, f"horovod.spark.run: {size} ranks") as jobs:
            jobs.start(lambda context: stage.run(context, jobs.over))
            wishes = replace(wishes, advice=lambda: application.advice(size))
            try:
                return run_fixed(gathering, call, size, wishes)
            except WorkerError as error:
                raise stage.explained(error) from error.__cause__


class _Stage:
    """Spark job whose tasks are the job's agents."""

    def __init__(self, application: Application, gathering: Gathering, size: int) -> None:
        self._application = application
        self._gathering = gathering
        self._size = size
        self._why = ""
        self._jobs_end: float | None = None

    def run(self, context: Any, over: threading.Event) -> None:
        """Run the Spark job until it ends, in a separate thread; return early if `over` is set before it starts."""
        attend = functools.partial(attend_barrier, self._gathering.ticket, arguments.of_the_driver())
        try:
            rdd = context.parallelize(range(self._size), self._size)
            # Spark does not support barrier stages with dynamic allocation.
            stage = rdd if self._application.is_dynamic else rdd.barrier()
            if not self._application.is_dynamic:
                self._application.wait_for_slots(self._size, over)
            if over.is_set():
                return
            stage.mapPartitionsWithIndex(attend).collect()
            trouble = "its tasks have ended"
        except Exception as error:
            trouble = self._why = words(error)
        self._jobs_end = time.monotonic()
        self._gathering.fail(RuntimeError(f"the Spark job that was to start {self._size} ranks is over: {trouble}"))

    def explained(self, error: WorkerError) -> WorkerError:
        """Return the error, with Spark's reason appended if an agent was lost."""
        if error.rank is not None:
            return error
        until = time.monotonic() + _REASON_SECONDS
        while self._jobs_end is None and time.monotonic() < until:
            time.sleep(0.05)
        if not self._why:
            return error
        return worker_error(f"{error}\nSpark says: {self._why}", None, error.host, error.exit_code)
