"""`HorovodRunner`: the interface of Databricks notebooks for jobs on the driver or in Spark tasks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from horovod.spark.application import Application
from horovod.spark.common.backend import LocalBackend
from horovod.spark.driver_log import DRIVER_LOG, DriverLog
from horovod.spark.job import run

VERBOSITIES = ("log_callback_only", "all")


class HorovodRunner:
    """Replacement for ``sparkdl.HorovodRunner``: ``HorovodRunner(np=2).run(main, epochs=3)``."""

    def __init__(
        self, *, np: int, driver_log_verbosity: str = "log_callback_only", env: Mapping[str, str] | None = None
    ) -> None:
        """Create a runner for a number of ranks.

        Args:
            np: Number of ranks. Positive: concurrent tasks of the active Spark application. Negative: ``-np`` processes
                on the driver's host, for tests. 0 (deprecated): all present slots of the application.
            driver_log_verbosity: What is shown of ranks in Spark tasks. ``"log_callback_only"``: their messages to
                ``horovod.spark.log_to_driver`` and their standard error. ``"all"``: also their standard output. Ranks
                on the driver's host always show everything.
            env: Environment variables of the ranks, added to those that they inherit.

        Raises:
            ValueError: If an argument is invalid. The message names it.
        """
        if isinstance(np, bool) or not isinstance(np, int):
            raise ValueError(
                f"np is {np!r}, accepted is an integer: below 0 for processes on the driver, else for tasks"
            )
        if driver_log_verbosity not in VERBOSITIES:
            raise ValueError(
                f"driver_log_verbosity is {driver_log_verbosity!r}, accepted are {' and '.join(map(repr, VERBOSITIES))}"
            )
        if np == 0:
            warnings.warn("np=0 is deprecated: say how many tasks the job needs", DeprecationWarning, stacklevel=2)
        self.np = np
        self.driver_log_verbosity = driver_log_verbosity
        self._env = dict(env or {})

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` on all ranks and return rank 0's result.

        Args:
            main: Function to call, serialized with cloudpickle.
            **kwargs: Its keyword arguments.

        Raises:
            TypeError: If ``main`` is not callable, or cannot be serialized.
            WorkerError: If a rank fails, as with ``horovod.run``.

        With ranks in Spark tasks, also the exceptions of ``horovod.spark.run``.
        """
        if not callable(main):
            raise TypeError(f"main is {main!r}, accepted is a function, called with the keywords given to run")
        if self.np < 0:
            return LocalBackend(-self.np, self._env).run(main, kwargs=kwargs)[0]
        log = DriverLog(sys.stdout, everything=self.driver_log_verbosity == "all")
        env = {**self._env, DRIVER_LOG: "1"}
        try:
            return run(main, kwargs=kwargs, num_proc=self.np or self._all(), env=env, stdout=log)[0]
        finally:
            log.close()

    def _all(self) -> int:
        application = Application()
        return application.slots or int(application.context.defaultParallelism)
