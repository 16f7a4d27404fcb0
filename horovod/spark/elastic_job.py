"""`horovod.spark.run_elastic`: ranks on executors that come and go. A Spark job of one task for each rank, submitted
again when it ends before its time: a task that dies takes no other with it, and a new one starts as soon as there is
room for it.
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
_PAUSE, _LONGEST_PAUSE = 0.25, 5.0  # s until a task that has ended is submitted again; twice as long each time it fails


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
    """Call `fn(*args, **kwargs)` on ranks that tasks of the active Spark application start, and go on when executors
    are lost and come. What trains is in a function that `hvd.elastic.run` wraps. Returns the results of the last
    min_num_proc first ranks.

    Begins when num_proc tasks run (default: spark.default.parallelism; min_num_proc and max_num_proc: num_proc), goes
    on as long as min_num_proc are left, and asks Spark for tasks until there are max_num_proc. elastic_timeout: s
    without enough ranks after which the job ends, default HOROVOD_ELASTIC_TIMEOUT. reset_limit: how often members may
    change. A rank that fails by itself is not replaced; one whose executor is lost is. `min_np` and `max_np` are older
    names. The other arguments, and what is raised, as of `run`, but that a lost task is no failure.
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
    """Those that Spark is asked for. `said`: what became of the last task that has failed, as the end of a sentence."""

    def __init__(self, gathering: Gathering, over: threading.Event) -> None:
        self._gathering = gathering
        self._over = over
        self._numbers = itertools.count()
        self.said = ""

    def keep(self, context: Any) -> None:
        """One task, again and again until the job is over. In a thread of its own."""
        given, pause = arguments.of_the_driver(), _PAUSE
        while not (self._over.is_set() or self._gathering.closed):
            act = functools.partial(attend, self._gathering.ticket, given, next(self._numbers))
            try:
                context.parallelize([0], 1).mapPartitions(act).collect()
            except Exception as error:
                self.said = f". The last task that failed: {words(error)}"
                if lasting := failures.known(said(error)):  # ends a job that has not begun; in others it is a warning
                    self._gathering.fail(RuntimeError(lasting))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _PAUSE
            self._over.wait(pause)
