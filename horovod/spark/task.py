"""What runs in Spark's tasks: each becomes an agent of the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from horovod.runner.cluster.task import become_agent
from horovod.runner.cluster.ticket import ArrivalError, Ticket

ATTEMPTS = 64  # numbers of a task's attempts; Spark's own limit of those is below that as a rule
DEVICES = "HOROVOD_SPARK_DEVICES"
SECRETS = (
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYSPARK_GATEWAY_SECRET",
    "SPARKR_BACKEND_AUTH_SECRET",
    "SPARKR_WORKER_SECRET",
    "_SPARK_AUTH_SECRET",
    "_SPARK_LAUNCHER_SECRET",
)
"""Variables by which Spark's own processes know one another."""
_PYTHONPATH, _WORK_DIR = "HOROVOD_SPARK_PYTHONPATH", "HOROVOD_SPARK_WORK_DIR"


def attend_barrier(ticket: Ticket, given: Mapping[str, str], index: int, _: Iterable[Any]) -> Iterator[Any]:
    """Of a job of a fixed size. Spark gives up a barrier stage that has lost a task; the tasks of a plain one, as we
    have with dynamic allocation, it tries again, when the job is over already."""
    context = _context()
    if context.attemptNumber():
        raise ArrivalError(
            f"attempt {context.attemptNumber()} of Spark task {index}: its first attempt was lost, and jobs of a fixed "
            "size do not replace it"
        )
    become_agent(ticket, index, label=f"Spark task {index}", **_home(context, given))
    return iter(())


def attend(ticket: Ticket, given: Mapping[str, str], task: int, _: Iterable[Any]) -> Iterator[Any]:
    """One that may come and go. `task`: its number; an attempt of Spark's to repeat it is another one to us."""
    context = _context()
    attempt = context.attemptNumber()
    if attempt >= ATTEMPTS:
        raise ArrivalError(f"attempt {attempt} of Spark task {task}: accepted are {ATTEMPTS}")
    label = f"Spark task {task}" + (f".{attempt}" if attempt else "")
    become_agent(ticket, task * ATTEMPTS + attempt, label=label, **_home(context, given))
    return iter(())


def get_available_devices() -> list[str]:
    """In a rank: addresses of the GPUs that Spark has given to its task, by spark.task.resource.gpu.amount; none where
    it gives out none."""
    return [name for name in os.environ.get(DEVICES, "").split(",") if name]


def _context() -> Any:
    from pyspark import TaskContext

    return TaskContext.get()


def _home(context: Any, given: Mapping[str, str]) -> dict[str, Any]:
    """Environment and directory of the ranks. `given`: variables of the driver about that; the executor's own count
    more."""
    environ = own_environment(os.environ, sys.path, (sys.prefix, sys.base_prefix), given)
    gpus = context.resources().get("gpu")
    if gpus is not None:
        environ[DEVICES] = ",".join(gpus.addresses)
    return {"environ": environ, "directory": os.environ.get(_WORK_DIR) or given.get(_WORK_DIR) or None}


def own_environment(
    environ: Mapping[str, str], path: Iterable[str], installed: tuple[str, ...], given: Mapping[str, str]
) -> dict[str, str]:
    """The executor's, without what only Spark's own processes are to know, and with all places in which this process
    looks for modules: files that were added to the application are in none that others know. Pure."""
    made = {name: value for name, value in environ.items() if name not in SECRETS}
    asked = environ.get(_PYTHONPATH) or given.get(_PYTHONPATH) or ""
    added = [os.path.abspath(entry) for entry in path if entry not in ("", ".") and not entry.startswith(installed)]
    before = environ.get("PYTHONPATH", "").split(os.pathsep)
    found = dict.fromkeys([*asked.split(os.pathsep), *added, *before])
    made["PYTHONPATH"] = os.pathsep.join(entry for entry in found if entry)
    return made
