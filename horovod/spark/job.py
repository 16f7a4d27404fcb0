"""`horovod.spark.run`: a job of a fixed size in a barrier stage, whose tasks all run at the same time or not at all."""

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

_REASON_SECONDS = 3.0  # for Spark to say why a task is gone


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
    """Call `fn(*args, **kwargs)` on `num_proc` ranks, each started by a task of the active Spark application, and
    return the results by rank.

    num_proc: default spark.default.parallelism. Ranks of a host follow one another, and task 0 is rank 0.
    start_timeout: s for all tasks to start, default HOROVOD_SPARK_START_TIMEOUT. env: variables of the ranks, over
    those of their executors; HOROVOD_* of the driver reach them too. stdout, stderr: text streams for what ranks print,
    each line with its rank in front; default: the driver's. verbose: 2 tells more of what the job does. nics: network
    interfaces for the ranks and the driver. executable: in place of the executors' Python. `fn`, its arguments and its
    results travel by cloudpickle.

    Raises RuntimeError without an active SparkContext; TimeoutError naming what was waited for; ValueError and
    TypeError for arguments that cannot be, among them a num_proc that the application can never run; WorkerError, as
    `horovod.run`, when a rank fails or a task or its executor is lost, which ends the job. An interrupt
    (KeyboardInterrupt) ends it, too. Several jobs may run at once, each called by a thread of its own.
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
    """The Spark job whose tasks are the agents."""

    def __init__(self, application: Application, gathering: Gathering, size: int) -> None:
        self._application = application
        self._gathering = gathering
        self._size = size
        self._why = ""
        self._jobs_end: float | None = None

    def run(self, context: Any, over: threading.Event) -> None:
        """In a thread of its own. `over`: it is not wanted any more."""
        attend = functools.partial(attend_barrier, self._gathering.ticket, arguments.of_the_driver())
        try:
            rdd = context.parallelize(range(self._size), self._size)
            # Spark has no barrier where executors come when they are needed.
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
        """Of an agent that was lost, with what Spark says of its task."""
        if error.rank is not None:
            return error
        until = time.monotonic() + _REASON_SECONDS
        while self._jobs_end is None and time.monotonic() < until:
            time.sleep(0.05)
        if not self._why:
            return error
        return worker_error(f"{error}\nSpark says: {self._why}", None, error.host, error.exit_code)
