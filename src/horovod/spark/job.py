"""Functions `horovod.spark.run` and `run_elastic`, with validation of their arguments.

In `run`, the ranks are the tasks of a barrier stage, which Spark starts all together or not at all. In `run_elastic`,
each rank is a separate Spark job with one task, which is submitted again if it ends too early. So the loss of a task
affects no other task, and its replacement starts when a slot is free.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from horovod.common.contract.settings import BY_NAME
from horovod.runner import cluster
from horovod.runner.base.arguments import ARGUMENTS, integer, interfaces, renamed, seconds
from horovod.runner.cluster import Call, Gathering, JobOptions, run_fixed
from horovod.runner.function.outcome import WorkerError, worker_error
from horovod.runner.plan.settings import ElasticSettings
from horovod.spark.application import Application, Jobs, error_text, explain_failure, failure_message
from horovod.spark.task import attend, attend_barrier

# -- arguments -------------------------------------------------------------------------------------------------------

_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"


def count(name: str, value: Any, default: int) -> int:
    """Return `value` as a number of processes, or `default` if it is None.

    Raises:
        ValueError: If the value is not a positive integer.
    """
    return default if value is None else integer(name, value, 1)


def start_timeout_of(value: Any) -> float:
    """Return the start timeout in seconds. None selects HOROVOD_SPARK_START_TIMEOUT or its default.

    Raises:
        ValueError: If the value is not a valid number of seconds.
    """
    if value is None:
        return float(BY_NAME[_TIMEOUT].parse(os.environ.get(_TIMEOUT, "")))  # type: ignore[arg-type]
    return seconds("start_timeout", value)


def rank_environment(env: Any) -> dict[str, str]:
    """Return the environment variables for the ranks as a dict.

    Raises:
        TypeError: If `env` is not a mapping of strings to strings.
    """
    if not isinstance(env, (Mapping, type(None))):
        raise TypeError(f"env must be a mapping of strings to strings, got {env!r}")
    for key, value in (env or {}).items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"env must map strings to strings, got {key!r}: {value!r}")
    return dict(env or {})


def _check_stream(name: str, stream: Any) -> None:
    takes_bytes = isinstance(stream, (io.RawIOBase, io.BufferedIOBase)) or "b" in str(getattr(stream, "mode", ""))
    if stream is not None and (takes_bytes or not hasattr(stream, "write")):
        raise TypeError(f"{name} must be a text stream, such as open(path, 'w') returns, got {stream!r}")


def job_options(
    *,
    env: Mapping[str, str] | None,
    stdout: Any,
    stderr: Any,
    verbose: Any,
    nics: Collection[str] | str | None,
    timestamp: bool,
    timeout: float,
    executable: str | None = None,
) -> JobOptions:
    """Validate the options of a job.

    Returns:
        The options.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value.
    """
    _check_stream("stdout", stdout)
    _check_stream("stderr", stderr)
    if not isinstance(verbose, (int, type(None))):
        raise TypeError(f"verbose must be an integer, got {verbose!r}; 2 shows more of what the job does")
    return JobOptions(
        start_timeout=timeout,
        environ=rank_environment(env),
        executable=executable,
        nics=interfaces("nics", nics),
        timestamp=bool(timestamp),
        verbose=(verbose or 0) >= 2,
        stdout=stdout,
        stderr=stderr,
        # Spark's SIGINT handler cancels all jobs of the driver, and then raises KeyboardInterrupt.
        handlers=("pyspark",),
    )


def of_the_driver() -> dict[str, str]:
    """Return the driver's HOROVOD_SPARK_* variables, which the tasks need."""
    return {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_SPARK_")}


def ports() -> str:
    """Return the range of ports on which the launcher can listen. An empty range allows all ports."""
    return os.environ.get("HOROVOD_PORT_RANGE", "")


_REASON_SECONDS = 3.0  # Seconds to wait for Spark to report why a task was lost


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

    The ranks of a host are consecutive, and task 0 has rank 0. A KeyboardInterrupt ends the job. Several jobs can run
    at the same time if different threads call this function.

    Args:
        fn: Function that each rank calls. The function, its arguments and its results are serialized with cloudpickle.
        args: Positional arguments of `fn`.
        kwargs: Keyword arguments of `fn`.
        num_proc: Number of ranks. Default: spark.default.parallelism.
        start_timeout: Seconds for all tasks to start. Default: HOROVOD_SPARK_START_TIMEOUT.
        use_mpi: Must not be True, because mpirun cannot start ranks on Spark.
        use_gloo: Ignored.
        extra_mpi_args: Must be None.
        env: Environment variables of the ranks, which override those of the executors. The ranks also get the driver's
            HOROVOD_* variables.
        stdout: Text stream for the ranks' standard output. Each line begins with the rank. Default: the driver's.
        stderr: Text stream for the ranks' standard error. Each line begins with the rank. Default: the driver's.
        verbose: 2 reports more about the job.
        nics: Network interfaces for the ranks and the driver.
        prefix_output_with_timestamp: True to begin each line of output with the time.
        executable: Python interpreter of the ranks. Default: the executors' interpreter.

    Returns:
        Results of the function by rank.

    Raises:
        RuntimeError: If there is no active SparkContext.
        TimeoutError: If the job does not start in time.
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is invalid, for example more ranks than the application can ever run.
        WorkerError: If a rank fails, or a task or its executor is lost, which ends the job.
    """
    if use_mpi:
        raise ValueError(
            "use_mpi must be False, got True: Spark's tasks start the ranks, not mpirun; set use_gloo=True or leave "
            "both out"
        )
    if extra_mpi_args is not None:
        raise ValueError(f"extra_mpi_args must be None, got {extra_mpi_args!r}: Spark's tasks do not use MPI")
    application = Application()
    size = count("num_proc", num_proc, application.context.defaultParallelism)
    options = job_options(
        env=env,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        nics=nics,
        timestamp=prefix_output_with_timestamp,
        timeout=start_timeout_of(start_timeout),
        executable=executable,
    )
    application.check(size, "num_proc")
    call = Call(fn, args, kwargs)
    with Gathering("Spark task", options.nics, ports()) as gathering:
        stage = _Stage(application, gathering, size)
        with Jobs(application, f"horovod.spark.run: {size} ranks") as jobs:
            jobs.start(lambda context: stage.run(context, jobs.over))
            options = replace(options, advice=lambda: application.advice(size))
            try:
                return run_fixed(gathering, call, size, options)
            except WorkerError as error:
                raise stage.explained(error) from error.__cause__


class _Stage:
    """Spark job whose tasks become the agents of a Horovod job."""

    def __init__(self, application: Application, gathering: Gathering, size: int) -> None:
        self._application = application
        self._gathering = gathering
        self._size = size
        self._why = ""
        self._jobs_end: float | None = None

    def run(self, context: Any, over: threading.Event) -> None:
        """Run the Spark job until it ends. Called in a separate thread.

        Return early if the event `over` is set, because the Horovod job has already ended.
        """
        attend = functools.partial(attend_barrier, self._gathering.ticket, of_the_driver())
        try:
            rdd = context.parallelize(range(self._size), self._size)
            # Spark does not support barrier stages with dynamic allocation, so use a normal stage.
            stage = rdd if self._application.is_dynamic else rdd.barrier()
            if not self._application.is_dynamic:
                self._application.wait_for_slots(self._size, over)
            if over.is_set():
                return
            stage.mapPartitionsWithIndex(attend).collect()
            trouble = "its tasks have ended"
        except Exception as error:
            trouble = self._why = failure_message(error)
        self._jobs_end = time.monotonic()
        self._gathering.fail(
            RuntimeError(f"the Spark job of {self._size} ranks ended before all of them started: {trouble}")
        )

    def explained(self, error: WorkerError) -> WorkerError:
        """Return the error. If Spark has lost a task, add Spark's reason."""
        if error.rank is not None:
            return error
        until = time.monotonic() + _REASON_SECONDS
        while self._jobs_end is None and time.monotonic() < until:
            time.sleep(0.05)
        if not self._why:
            return error
        return worker_error(f"{error}\nSpark says: {self._why}", None, error.host, error.exit_code)


# -- run_elastic -----------------------------------------------------------------------------------------------------

_NAMES = replace(ARGUMENTS, cooldown="")
# Initial and maximum delay before a failed task is resubmitted (s). Each failure doubles the delay.
_PAUSE, _LONGEST_PAUSE = 0.25, 5.0


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Collection[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on ranks in Spark tasks, and keep running when executors are lost or added.

    The job begins when `num_proc` tasks are running, and continues while at least `min_num_proc` ranks are left. It
    requests tasks from Spark until there are `max_num_proc`. A rank is replaced if its executor is lost, but not if the
    rank itself fails. `fn` should train in a function that `hvd.elastic.run` wraps.

    Args:
        fn: Function that each rank calls. The function, its arguments and its results are serialized with cloudpickle.
        args: Positional arguments of `fn`.
        kwargs: Keyword arguments of `fn`.
        num_proc: Initial number of ranks. Default: spark.default.parallelism.
        min_num_proc: Minimum number of ranks. Default: `num_proc`.
        max_num_proc: Maximum number of ranks. Default: `num_proc`.
        start_timeout: Seconds for the first tasks to start. Default: HOROVOD_SPARK_START_TIMEOUT.
        elastic_timeout: The job ends after this many seconds without enough ranks. Default: HOROVOD_ELASTIC_TIMEOUT.
        reset_limit: Maximum number of times that the set of ranks may change. Default: no limit.
        env: Environment variables of the ranks, as in `run`.
        stdout: Text stream for the ranks' standard output. Default: the driver's.
        stderr: Text stream for the ranks' standard error. Default: the driver's.
        verbose: 2 reports more about the job.
        nics: Network interfaces for the ranks and the driver.
        prefix_output_with_timestamp: True to begin each line of output with the time.
        min_np: Old name of `min_num_proc`.
        max_np: Old name of `max_num_proc`.

    Returns:
        Results of the first `min_num_proc` ranks at the end of the job, in rank order.

    Raises:
        ValueError: If an argument is invalid. Other exceptions are those of `run`, but a lost task is not a failure.
    """
    for old, new, value in (("min_np", "min_num_proc", min_np), ("max_np", "max_num_proc", max_np)):
        renamed(old, new, value)
    application = Application()
    size = count("num_proc", num_proc, application.context.defaultParallelism)
    least = count("min_num_proc", min_np if min_num_proc is None else min_num_proc, size)
    maximum = count("max_num_proc", max_np if max_num_proc is None else max_num_proc, size)
    if not least <= size <= maximum:
        raise ValueError(
            "num_proc must be between min_num_proc and max_num_proc, got "
            f"min_num_proc={least}, num_proc={size}, max_num_proc={maximum}"
        )
    resets = None if reset_limit is None else integer("reset_limit", reset_limit, 0)
    variables = rank_environment(env)
    if elastic_timeout is not None:
        variables["HOROVOD_ELASTIC_TIMEOUT"] = str(seconds("elastic_timeout", elastic_timeout))
    options = job_options(
        env=variables,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        nics=nics,
        timestamp=prefix_output_with_timestamp,
        timeout=start_timeout_of(start_timeout),
    )
    application.check(size, "num_proc")
    call = Call(fn, args, kwargs)
    description = f"horovod.spark.run_elastic: {least} to {maximum} ranks"
    with Gathering("Spark task", options.nics, ports()) as gathering, Jobs(application, description) as jobs:
        tasks = _Tasks(gathering, jobs.over)
        for _ in range(maximum):
            jobs.start(tasks.keep)
        options = replace(options, advice=lambda: application.advice(size) + tasks.last_failure, names=_NAMES)
        settings = ElasticSettings(size, least, maximum, resets)
        return cluster.run_elastic(gathering, call, settings, options)


class _Tasks:
    """The Spark tasks of an elastic job.

    Attributes:
        last_failure: Description of the last failure, appended to error messages, or an empty string.
    """

    def __init__(self, gathering: Gathering, over: threading.Event) -> None:
        self._gathering = gathering
        self._over = over
        self._numbers = itertools.count()
        self.last_failure = ""

    def keep(self, context: Any) -> None:
        """Run a task, and resubmit it each time it ends, until the job is over. Called in a separate thread."""
        given, pause = of_the_driver(), _PAUSE
        while not (self._over.is_set() or self._gathering.closed):
            act = functools.partial(attend, self._gathering.ticket, given, next(self._numbers))
            try:
                context.parallelize([0], 1).mapPartitions(act).collect()
            except Exception as error:
                self.last_failure = f". The last task that failed: {failure_message(error)}"
                # If a retry cannot fix the failure, abort a job that has not started yet. A running job only shows a
                # warning.
                if lasting := explain_failure(error_text(error)):
                    self._gathering.fail(RuntimeError(lasting))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _PAUSE
            self._over.wait(pause)
