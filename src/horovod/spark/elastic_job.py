"""`horovod.spark.run_elastic`: ranks on executors that come and go.

Each rank is a separate Spark job with one task, which is resubmitted if it ends too early. So a lost task affects no
other task, and its replacement starts as soon as there is a free slot.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from horovod.runner import cluster
from horovod.runner.base.arguments import integer, renamed, seconds
from horovod.runner.base.names import ARGUMENTS
from horovod.runner.cluster import Call, Gathering
from horovod.runner.plan.settings import ElasticSettings
from horovod.spark import arguments, failures
from horovod.spark.application import Application, Jobs, said, words
from horovod.spark.task import attend

_NAMES = replace(ARGUMENTS, cooldown="")
_PAUSE, _LONGEST_PAUSE = 0.25, 5.0  # seconds until a task is resubmitted; doubled with each failure


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
    """Call `fn(*args, **kwargs)` on ranks in Spark tasks, and continue when executors are lost or added.

    The job begins when `num_proc` tasks run, continues while at least `min_num_proc` ranks are left, and requests tasks
    from Spark until there are `max_num_proc`. A rank that fails by itself is not replaced; a rank whose executor is
    lost is. `fn` should train in a function that `hvd.elastic.run` wraps.

    Args:
        fn: Function that each rank calls. It, its arguments and its results are serialized with cloudpickle.
        args: Positional arguments of `fn`.
        kwargs: Keyword arguments of `fn`.
        num_proc: Number of ranks to begin with. Default: spark.default.parallelism.
        min_num_proc: Least number of ranks. Default: `num_proc`.
        max_num_proc: Largest number of ranks. Default: `num_proc`.
        start_timeout: Seconds for the first tasks to start. Default: HOROVOD_SPARK_START_TIMEOUT.
        elastic_timeout: Seconds without enough ranks after which the job ends. Default: HOROVOD_ELASTIC_TIMEOUT.
        reset_limit: How many times the ranks may change. Default: no limit.
        env: Environment variables of the ranks, see `run`.
        stdout: Text stream for the ranks' standard output. Default: the driver's.
        stderr: Text stream for the ranks' standard error. Default: the driver's.
        verbose: 2 reports more about the job.
        nics: Network interfaces for the ranks and the driver.
        prefix_output_with_timestamp: Whether lines of output begin with the time.
        min_np: Old name of `min_num_proc`.
        max_np: Old name of `max_num_proc`.

    Returns:
        The results of the first `min_num_proc` ranks at the end of the job, by rank.

    Raises:
        The exceptions of `run`. A lost task is not a failure here.
    """
    for old, new, value in (("min_np", "min_num_proc", min_np), ("max_np", "max_num_proc", max_np)):
        renamed(old, new, value)
    application = Application()
    size = arguments.count("num_proc", num_proc, application.context.defaultParallelism)
    least = arguments.count("min_num_proc", min_np if min_num_proc is None else min_num_proc, size)
    most = arguments.count("max_num_proc", max_np if max_num_proc is None else max_num_proc, size)
    if not least <= size <= most:
        raise ValueError(
            f"min_num_proc is {least}, num_proc {size} and max_num_proc {most}; accepted is min <= num_proc <= max"
        )
    resets = None if reset_limit is None else integer("reset_limit", reset_limit, 0)
    variables = arguments.variables(env)
    if elastic_timeout is not None:
        variables["HOROVOD_ELASTIC_TIMEOUT"] = str(seconds("elastic_timeout", elastic_timeout))
    wishes = arguments.wishes(
        env=variables,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        nics=nics,
        timestamp=prefix_output_with_timestamp,
        timeout=arguments.start_timeout(start_timeout),
    )
    application.check(size, "num_proc")
    call = Call(fn, args, kwargs)
    description = f"horovod.spark.run_elastic: {least} to {most} ranks"
    with Gathering("Spark task", wishes.nics, arguments.ports()) as gathering, Jobs(application, description) as jobs:
        tasks = _Tasks(gathering, jobs.over)
        for _ in range(most):
            jobs.start(tasks.keep)
        wishes = replace(wishes, advice=lambda: application.advice(size) + tasks.said, names=_NAMES)
        settings = ElasticSettings(size, least, most, resets)
        return cluster.run_elastic(gathering, call, settings, wishes)


class _Tasks:
    """Spark tasks of the job. `said` is the last task's failure as the end of a message, or empty."""

    def __init__(self, gathering: Gathering, over: threading.Event) -> None:
        self._gathering = gathering
        self._over = over
        self._numbers = itertools.count()
        self.said = ""

    def keep(self, context: Any) -> None:
        """Run a task, and replace it each time it ends, until the job is over. Runs in a separate thread."""
        given, pause = arguments.of_the_driver(), _PAUSE
        while not (self._over.is_set() or self._gathering.closed):
            act = functools.partial(attend, self._gathering.ticket, given, next(self._numbers))
            try:
                context.parallelize([0], 1).mapPartitions(act).collect()
            except Exception as error:
                self.said = f". The last task that failed: {words(error)}"
                if lasting := failures.known(said(error)):  # ends a job that has not begun; a warning in other jobs
                    self._gathering.fail(RuntimeError(lasting))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _PAUSE
            self._over.wait(pause)
