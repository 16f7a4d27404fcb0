"""Access to the driver's Spark application: the number of tasks that it can run, and background jobs."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# -- capacity, computed from the settings ----------------------------------------------------------------------------

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[ *(\d+) *, *(\d+) *, *(\d+) *\]")


@dataclass(frozen=True)
class TaskLimit:
    """Upper bound on the number of concurrent tasks.

    Attributes:
        slots: Maximum number of concurrent tasks.
        why: Reason for this bound, for error messages.
    """

    slots: int
    why: str


def slot_limit(conf: Mapping[str, str], cores: int) -> TaskLimit | None:
    """Return the upper bound on the number of concurrent tasks, or None if the settings imply no bound.

    Args:
        conf: Settings of the application by key.
        cores: Number of cores of the driver's host.
    """
    master = conf.get("spark.master", "")
    per_task = _number(conf, "spark.task.cpus") or 1
    if found := _LOCAL.fullmatch(master):
        count = 1 if found[1] is None else cores if found[1] == "*" else int(found[1])
        return TaskLimit(count // per_task, _reason(f"the master {master} has {count} core{_s(count)}", per_task))
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return _of_executors(int(found[1]), int(found[2]), per_task, f"the master {master}")
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors, key = _number(conf, "spark.dynamicAllocation.maxExecutors"), "spark.dynamicAllocation.maxExecutors"
    else:
        executors, key = _number(conf, "spark.executor.instances"), "spark.executor.instances"
    if master.startswith("spark:"):
        most = _number(conf, "spark.cores.max")
        return None if most is None else TaskLimit(most // per_task, _reason(f"spark.cores.max is {most}", per_task))
    if executors is None or not master.startswith(("yarn", "k8s:")):
        return None
    return _of_executors(executors, _number(conf, "spark.executor.cores") or 1, per_task, f"{key}={executors}")


def _of_executors(executors: int, each: int, per_task: int, what: str) -> TaskLimit:
    why = f"{what} means {executors} executor{_s(executors)} of {each} core{_s(each)}"
    return TaskLimit(executors * (each // per_task), _reason(why, per_task))


def _reason(why: str, per_task: int) -> str:
    return why if per_task == 1 else f"{why}, and spark.task.cpus is {per_task}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _number(conf: Mapping[str, str], key: str) -> int | None:
    text = conf.get(key, "")
    return int(text) if text.isdecimal() else None


# -- explanations of Spark's failures, derived from its messages -----------------------------------------------------

_LINES = 12  # Maximum number of lines of Spark's message to show in an error message.

_EXPLANATIONS = (
    (
        r"No module named '(horovod(?:\.(?:spark|runner|common)[\w.]*)?|cloudpickle|msgspec|zmq)'",
        "an executor has no horovod, or another version ({0}): install the version of the driver, and what it needs, "
        "for the Python of the executors (PYSPARK_PYTHON, spark.pyspark.python)",
    ),
    (
        r"Python in worker has different version:? ?\(?['\"]?([\d.]+)[^\n]*",
        "an executor runs Python {0}, the driver another: let spark.pyspark.python name an interpreter of the driver's "
        "minor version on all nodes",
    ),
    (
        r"Cannot run program \"([^\"]+)\"",
        "an executor cannot run Python as {0}: let spark.pyspark.python name an interpreter that is there on all nodes",
    ),
    (
        r"the launcher refuses this process: ([^\n]+)",
        "an executor cannot take part: {0}",
    ),
    (
        r"(host \S+ cannot reach the job's launcher[^\n]*)",
        "{0}; executors have to reach the driver: see nics, and HOROVOD_PORT_RANGE where a firewall is in between",
    ),
)


def explain_failure(text: str) -> str:
    """Explain a Spark job failure that a retry cannot fix. For all other failures, return an empty string."""
    for pattern, explanation in _EXPLANATIONS:
        if found := re.search(pattern, text):
            return explanation.format(found[1])
    return ""


def explain(text: str) -> str:
    """Return Horovod's explanation of why a Spark job failed.

    If the failure is unknown, return the essential lines of Spark's message.
    """
    if explanation := explain_failure(text):
        return explanation
    lost = re.findall(r"ExecutorLostFailure[^\n]*", text)
    if lost:
        return str(lost[-1]).strip()
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not re.match(r"\s+at |\s*\.\.\. \d", line)]
    lines = [re.sub(r"^.*?Exception: (?=Job aborted)", "", line) for line in lines]
    begin = next((at for at, line in enumerate(lines) if "Job aborted" in line or "failed" in line), 0)
    return "\n".join(lines[begin : begin + _LINES])


_POLL = 0.2  # Seconds between queries of the number of slots, because Spark does not report changes.
_END_SECONDS = 10.0  # Maximum seconds to wait until cancelled Spark jobs have stopped.
_FAREWELL = 3.0  # Maximum seconds to wait until tasks have finished, after their agents have exited.


class Application:
    """Active Spark application of the driver.

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
                "there is no active SparkContext in this process; create one first with "
                "SparkSession.builder.getOrCreate() (a Spark Connect session has none)"
            )
        self.context = context

    @property
    def conf(self) -> dict[str, str]:
        return dict(self.context.getConf().getAll())

    @property
    def is_dynamic(self) -> bool:
        """True if Spark adds and removes executors depending on the number of tasks (dynamic allocation)."""
        return self.conf.get("spark.dynamicAllocation.enabled", "false") == "true"

    @property
    def slots(self) -> int | None:
        """Number of concurrent tasks that the current executors can run, or None if Spark does not report it."""
        try:  # Spark has no public API for the number of concurrent tasks, so use a private method.
            scala = self.context._jsc.sc()
            return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        except Exception:
            return None

    def check(self, num_proc: int, name: str) -> None:
        """Check that Spark's settings allow `num_proc` concurrent tasks.

        `name` is the name of the argument in the message.

        Raises:
            ValueError: If they do not.
        """
        bound = slot_limit(self.conf, os.cpu_count() or 1)
        if bound is not None and num_proc > bound.slots:
            raise ValueError(
                f"{name} must be at most {bound.slots}, the task slots of this Spark application, got {num_proc}: "
                f"{bound.why}; request fewer ranks, or give the application more slots"
            )

    def wait_for_slots(self, num_proc: int, over: threading.Event) -> None:
        """Wait until `num_proc` concurrent tasks are possible, or until `over` is set.

        If a barrier stage is submitted too early, Spark retries it only after a delay.
        """
        while (slots := self.slots) is not None and slots < num_proc and not over.wait(_POLL):
            pass

    def advice(self, num_proc: int) -> str:
        """Return advice on what the user should check if tasks do not start."""
        slots = self.slots
        has = "" if slots is None else f"The Spark application has {slots} slots for tasks now, and the "
        return (
            f"{has or 'The '}job needs {num_proc} that are free at a time: check that the cluster has the resources, "
            "that no other job of the application holds them, or ask for fewer (num_proc) or more time (start_timeout, "
            "HOROVOD_SPARK_START_TIMEOUT)"
        )


class Jobs:
    """Context manager that runs Spark jobs in background threads, all in the same job group.

    On exit, it gives the jobs a few seconds to finish, and then cancels the group.
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

        The thread inherits the calling thread's Spark settings, such as its scheduler pool, and uses this object's job
        group. `act` must not raise an exception.
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
        finally:  # Clean up even if the user pressed Ctrl-C while waiting.
            if any(thread.is_alive() for thread in self._threads):
                # Ignore errors, because the application might have ended together with its jobs.
                with contextlib.suppress(Exception):
                    self._context.cancelJobGroup(self._group)
                self._join(_END_SECONDS)

    def _join(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def error_text(error: BaseException) -> str:
    """Return Spark's complete message about a failure."""
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else str(error)


def failure_message(error: BaseException) -> str:
    """Return the most informative part of Spark's message about a failure."""
    return explain(error_text(error))
