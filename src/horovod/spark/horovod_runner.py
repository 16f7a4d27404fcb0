"""Class `HorovodRunner`, which Databricks notebooks use to run jobs on the driver or in Spark tasks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from horovod.spark.application import Application
from horovod.spark.common.backend import LocalBackend
from horovod.spark.job import run

# -- messages of ranks, marked within their output -------------------------------------------------------------------

DRIVER_LOG = "HOROVOD_SPARK_DRIVER_LOG"
"""Environment variable that is set for ranks whose output a DriverLog reads."""
_MARK = "\x02driver\x03"  # Start of a message line. Programs do not normally print these control characters.


def log_to_driver(message: str) -> None:
    """Show a message of this rank in the driver's output (in a notebook, below the cell).

    The message is shown for all values of ``driver_log_verbosity``. Outside of a job of ``HorovodRunner``, this
    function prints the message.

    Args:
        message: Text of one or more lines.

    Raises:
        TypeError: If ``message`` is not a string.
    """
    if not isinstance(message, str):
        raise TypeError(f"message must be a string, got {message!r}")
    mark = _MARK if os.environ.get(DRIVER_LOG) else ""
    print("\n".join(mark + line for line in message.splitlines() or [""]), flush=True)


class DriverLog:
    """Text stream that receives the ranks' output, and forwards messages of ``log_to_driver`` to ``target``.

    If ``everything`` is True, it forwards all other lines as well.
    """

    def __init__(self, target: Any, *, everything: bool) -> None:
        self._target = target
        self._everything = everything
        self._partial = ""  # Incomplete last line of the output.

    def write(self, text: str) -> int:
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        """Forward an incomplete last line, and flush the target without closing it."""
        if self._partial:
            self._line(self._partial)
            self._partial = ""
        self._target.flush()

    def _line(self, line: str) -> None:
        _, mark, meant = line.partition(_MARK)
        if mark or self._everything:
            self._target.write((meant if mark else line) + "\n")


VERBOSITIES = ("log_callback_only", "all")


class HorovodRunner:
    """Replacement for ``sparkdl.HorovodRunner``, used as ``HorovodRunner(np=2).run(main, epochs=3)``."""

    def __init__(
        self, *, np: int, driver_log_verbosity: str = "log_callback_only", env: Mapping[str, str] | None = None
    ) -> None:
        """Create a runner for a number of ranks.

        Args:
            np: Number of ranks. Positive: concurrent tasks of the active Spark application. Negative: ``-np`` processes
                on the driver's host, for tests. 0 (deprecated): all current task slots of the application.
            driver_log_verbosity: Selects which output of ranks in Spark tasks is shown. ``"log_callback_only"`` shows
                their messages to ``horovod.spark.log_to_driver`` and their standard error. ``"all"`` also shows their
                standard output. Ranks on the driver's host always show everything.
            env: Environment variables to set on the ranks, in addition to inherited ones.

        Raises:
            ValueError: If an argument is invalid. The message names it.
        """
        if isinstance(np, bool) or not isinstance(np, int):
            raise ValueError(f"np must be an integer, below 0 for processes on the driver, else for tasks, got {np!r}")
        if driver_log_verbosity not in VERBOSITIES:
            raise ValueError(
                f"driver_log_verbosity must be {' or '.join(map(repr, VERBOSITIES))}, got {driver_log_verbosity!r}"
            )
        if np == 0:
            warnings.warn(
                "np=0 is deprecated; set np to the number of tasks that the job needs", DeprecationWarning, stacklevel=2
            )
        self.np = np
        self.driver_log_verbosity = driver_log_verbosity
        self._env = dict(env or {})

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` on all ranks.

        Args:
            main: Function to call. It is serialized with cloudpickle.
            **kwargs: Keyword arguments of the function.

        Returns:
            Result of rank 0.

        Raises:
            TypeError: If ``main`` is not callable, or cannot be serialized.
            WorkerError: If a rank fails, as with ``horovod.run``.

        With ranks in Spark tasks, the exceptions of ``horovod.spark.run`` are raised as well.
        """
        if not callable(main):
            raise TypeError(f"main must be a function, which is called with the keywords given to run, got {main!r}")
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
