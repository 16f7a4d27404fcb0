"""The driver's Spark application: its capacity, and Spark jobs that run in the background."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from horovod.spark import capacity, failures

_POLL = 0.2  # seconds between checks of the number of slots; Spark sends no notification
_END_SECONDS = 10.0  # time that cancelled Spark jobs have to end
_FAREWELL = 3.0  # seconds that tasks have to end by themselves after their agents have ended


class Application:
    """The active Spark application.

    Raises:
        RuntimeError: If this process has no active SparkContext.
        ImportError: If pyspark is not installed.
    """

    def __init__(self) -> None:
        try:
            from pyspark import SparkContext
        except ImportError:
            raise ImportError("horovod.spark needs pyspark: pip install 'horovod[spark]'") from None

        context = SparkContext._active_spark_context
        if context is None or context._jsc is None:
            raise RuntimeError(
                "there is no active SparkContext in this process; make one first, by "
                "SparkSession.builder.getOrCreate() (a session of Spark Connect has none)"
            )
        self.context = context

    @property
    def conf(self) -> dict[str, str]:
        return dict(self.context.getConf().getAll())

    @property
    def is_dynamic(self) -> bool:
        """True if Spark adds and removes executors according to the number of tasks."""
        return self.conf.get("spark.dynamicAllocation.enabled", "false") == "true"

    @property
    def slots(self) -> int | None:
        """Number of tasks that the present executors can run concurrently, or None if Spark does not tell."""
        try:  # no public API returns this
            scala = self.context._jsc.sc()
            return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        except Exception:
            return None

    def check(self, num_proc: int, name: str) -> None:
        """Raise ValueError if the application can never run `num_proc` tasks at once, as far as this is known.

        `name` is the argument that the message names.
        """
        bound = capacity.bound(self.conf, os.cpu_count() or 1)
        if bound is not None and num_proc > bound.slots:
            raise ValueError(
                f"{name} is {num_proc}, but this Spark application has at most {bound.slots} "
                f"slot{'' if bound.slots == 1 else 's'} for tasks: {bound.why}; ask for fewer, or give it more"
            )

    def wait_for_slots(self, num_proc: int, over: threading.Event) -> None:
        """Wait until `num_proc` tasks can run at once, or until `over` is set.

        Spark retries a barrier stage that was submitted too early only after a delay.
        """
        while (slots := self.slots) is not None and slots < num_proc and not over.wait(_POLL):
            pass

    def advice(self, num_proc: int) -> str:
        """Return a message that says what to check if tasks do not start."""
        slots = self.slots
        has = "" if slots is None else f"The Spark application has {slots} slots for tasks now, and the "
        return (
            f"{has or 'The '}job needs {num_proc} that are free at a time: check that the cluster has the resources, "
            "that no other job of the application holds them, or ask for fewer (num_proc) or more time (start_timeout, "
            "HOROVOD_SPARK_START_TIMEOUT)"
        )


class Jobs:
    """Context manager for Spark jobs that run in background threads, all in one job group.

    Leaving it gives the jobs a few seconds to end, then cancels the group.
    """

    def __init__(self, application: Application, description: str) -> None:
        self._context = application.context
        self._description = description
        self._group = f"horovod-{uuid.uuid4().hex}"
        self._threads: list[threading.Thread] = []
        self.over = threading.Event()
        """Set when no further Spark jobs should be started."""

    def start(self, act: Callable[[Any], None]) -> None:
        """Call `act(context)` with the SparkContext in a new thread.

        The thread inherits the calling thread's Spark settings, such as its scheduler pool, and uses this job group.
        `act` must not raise.
        """
        from pyspark import InheritableThread

        def inside() -> None:
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=False)
            act(self._context)

        thread = InheritableThread(target=inside, daemon=True)
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        try:
            self._join(_FAREWELL)
        finally:  # also after a KeyboardInterrupt during the wait
            if any(thread.is_alive() for thread in self._threads):
                with contextlib.suppress(Exception):  # fails if the application has ended, and its jobs with it
                    self._context.cancelJobGroup(self._group)
                self._join(_END_SECONDS)

    def _join(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def said(error: BaseException) -> str:
    """Return Spark's complete message about a failure."""
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else str(error)


def words(error: BaseException) -> str:
    """Return the most informative part of Spark's message about a failure."""
    return failures.explain(said(error))
