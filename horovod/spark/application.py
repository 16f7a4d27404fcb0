"""The Spark application that the driver has: what it can run, and jobs of it that run beside the driver's program."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from horovod.spark import capacity, failures

_POLL = 0.2  # s between two looks at how many executors there are: Spark does not tell
_END_SECONDS = 10.0  # for Spark's jobs to end when they are cancelled
_FAREWELL = 3.0  # s for tasks whose agents have ended to end by themselves


class Application:
    """The active one. Raises RuntimeError without, ImportError without pyspark."""

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
        """Do executors come when there are tasks for them, and go?"""
        return self.conf.get("spark.dynamicAllocation.enabled", "false") == "true"

    @property
    def slots(self) -> int | None:
        """Tasks that the executors of this moment can run at a time; None: Spark does not say."""
        try:  # no public interface has it
            scala = self.context._jsc.sc()
            return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        except Exception:
            return None

    def check(self, num_proc: int, name: str) -> None:
        """Raises ValueError for more than the application can ever run at a time, as far as that is known."""
        bound = capacity.bound(self.conf, os.cpu_count() or 1)
        if bound is not None and num_proc > bound.slots:
            raise ValueError(
                f"{name} is {num_proc}, but this Spark application has at most {bound.slots} "
                f"slot{'' if bound.slots == 1 else 's'} for tasks: {bound.why}; ask for fewer, or give it more"
            )

    def wait_for_slots(self, num_proc: int, over: threading.Event) -> None:
        """Until there are so many, or it is over: a barrier stage that comes too early is tried again after a while
        only."""
        while (slots := self.slots) is not None and slots < num_proc and not over.wait(_POLL):
            pass

    def advice(self, num_proc: int) -> str:
        """What to look at when tasks do not start."""
        slots = self.slots
        has = "" if slots is None else f"The Spark application has {slots} slots for tasks now, and the "
        return (
            f"{has or 'The '}job needs {num_proc} that are free at a time: check that the cluster has the resources, "
            "that no other job of the application holds them, or ask for fewer (num_proc) or more time (start_timeout, "
            "HOROVOD_SPARK_START_TIMEOUT)"
        )


class Jobs:
    """Spark jobs in threads of their own, under one group, which is cancelled when this is left as a context manager.
    None of them is awaited before."""

    def __init__(self, application: Application, description: str) -> None:
        self._context = application.context
        self._description = description
        self._group = f"horovod-{uuid.uuid4().hex}"
        self._threads: list[threading.Thread] = []
        self.over = threading.Event()
        """Nothing is to be started any more."""

    def start(self, act: Callable[[Any], None]) -> None:
        """`act`, with the SparkContext, in a thread that has this thread's settings (scheduler pool ...) and our group.
        It must not raise."""
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
        finally:  # an interrupt may come while we wait
            if any(thread.is_alive() for thread in self._threads):
                with contextlib.suppress(Exception):  # the application has ended, and with it its jobs
                    self._context.cancelJobGroup(self._group)
                self._join(_END_SECONDS)

    def _join(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def said(error: BaseException) -> str:
    """All that Spark says of a failure."""
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else str(error)


def words(error: BaseException) -> str:
    """What of that tells most."""
    return failures.explain(said(error))
