"""`HorovodRunner`: jobs as notebooks on Databricks start them, on the driver or on Spark's tasks, by one number."""

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
    """Takes the place of ``sparkdl.HorovodRunner``: ``HorovodRunner(np=2).run(main, epochs=3)``."""

    def __init__(
        self, *, np: int, driver_log_verbosity: str = "log_callback_only", env: Mapping[str, str] | None = None
    ) -> None:
        """``np``: below 0, so many processes on the driver's machine, for trying things out; above 0, so many tasks of
        the active Spark application, all at the same time; 0, which is deprecated, as many as it has slots now.
        ``driver_log_verbosity``: of ranks on Spark's tasks, ``"log_callback_only"`` shows what they hand to
        ``horovod.spark.log_to_driver`` and what they write to stderr, ``"all"`` also what they print; of those on the
        driver all is shown. ``env``: variables of the ranks, over those that they have.

        Raises ValueError naming an argument that cannot be.
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
        """Calls ``main(**kwargs)`` on all ranks and returns what rank 0 returned.

        Raises TypeError for what cannot be called or sent; WorkerError, as ``horovod.run``, when a rank fails; with
        tasks of Spark what ``horovod.spark.run`` raises.
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
