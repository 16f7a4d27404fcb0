"""Functions that run in Spark tasks, each of which becomes an agent of a Horovod job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from horovod.runner.cluster.task import ArrivalError, Ticket, become_agent

ATTEMPTS = 64  # Maximum number of attempts per task; agent ids depend on it. Spark's own limit is usually lower.
DEVICES = "HOROVOD_SPARK_DEVICES"
SECRETS = (
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYSPARK_GATEWAY_SECRET",
    "SPARKR_BACKEND_AUTH_SECRET",
    "SPARKR_WORKER_SECRET",
    "_SPARK_AUTH_SECRET",
    "_SPARK_LAUNCHER_SECRET",
)
"""Variables with which Spark's own processes authenticate each other."""
_PYTHONPATH, _WORK_DIR = "HOROVOD_SPARK_PYTHONPATH", "HOROVOD_SPARK_WORK_DIR"


def attend_barrier(ticket: Ticket, environment: Mapping[str, str], index: int, _: Iterable[Any]) -> Iterator[Any]:
    """Become the agent with number `index` of a fixed-size job.

    Spark aborts a barrier stage if one of its tasks is lost. With dynamic allocation, the stage has no barrier, so
    Spark retries lost tasks even after the job is over.

    Returns:
        An empty iterator, after the job.

    Raises:
        ArrivalError: If this is such a retry.
    """
    context = _context()
    if context.attemptNumber():
        raise ArrivalError(
            f"attempt {context.attemptNumber()} of Spark task {index}: its first attempt was lost, and jobs of a fixed "
            "size do not replace lost tasks"
        )
    become_agent(ticket, index, label=f"Spark task {index}", **_home(context, environment))
    return iter(())


def attend(ticket: Ticket, environment: Mapping[str, str], task: int, _: Iterable[Any]) -> Iterator[Any]:
    """Become an agent of an elastic job. `task` is the number of the Spark task.

    If Spark retries the task, the agent gets a new number.

    Returns:
        An empty iterator, after the job.

    Raises:
        ArrivalError: If Spark has retried the task too often.
    """
    context = _context()
    attempt = context.attemptNumber()
    if attempt >= ATTEMPTS:
        raise ArrivalError(f"attempt {attempt} of Spark task {task}: a task has at most {ATTEMPTS} attempts")
    label = f"Spark task {task}" + (f".{attempt}" if attempt else "")
    become_agent(ticket, task * ATTEMPTS + attempt, label=label, **_home(context, environment))
    return iter(())


def get_available_devices() -> list[str]:
    """Return the addresses of the GPUs that Spark assigned to this rank's task.

    Returns:
        Addresses as strings. The list is empty unless spark.task.resource.gpu.amount is set.
    """
    return [name for name in os.environ.get(DEVICES, "").split(",") if name]


def _context() -> Any:
    from pyspark import TaskContext

    return TaskContext.get()


def _home(context: Any, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the environment and working directory of the ranks.

    Variables set in the executor override those in `environment`.
    """
    environ = own_environment(os.environ, sys.path, (sys.prefix, sys.base_prefix), environment)
    gpus = context.resources().get("gpu")
    if gpus is not None:
        environ[DEVICES] = ",".join(gpus.addresses)
    return {"environ": environ, "directory": os.environ.get(_WORK_DIR) or environment.get(_WORK_DIR) or None}


def own_environment(
    environ: Mapping[str, str], path: Iterable[str], installed: tuple[str, ...], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the executor's environment without Spark's secrets, and with this process's `sys.path` as PYTHONPATH.

    Without this path, ranks could not import files that the user added to the application with `addPyFile`.

    Args:
        environ: Environment of this process.
        path: Module search path (`sys.path`) of this process.
        installed: Prefixes of the Python installation. Directories below them are not added to the search path.
        environment: HOROVOD_SPARK_* variables of the driver.
    """
    made = {name: value for name, value in environ.items() if name not in SECRETS}
    asked = environ.get(_PYTHONPATH) or environment.get(_PYTHONPATH) or ""
    added = [os.path.abspath(entry) for entry in path if entry not in ("", ".") and not entry.startswith(installed)]
    before = environ.get("PYTHONPATH", "").split(os.pathsep)
    found = dict.fromkeys([*asked.split(os.pathsep), *added, *before])
    made["PYTHONPATH"] = os.pathsep.join(entry for entry in found if entry)
    return made
