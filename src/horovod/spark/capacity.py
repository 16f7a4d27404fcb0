"""Upper bound of concurrent tasks of a Spark application, computed from its settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[ *(\d+) *, *(\d+) *, *(\d+) *\]")


@dataclass(frozen=True)
class Bound:
    """Upper bound of concurrent tasks (`slots`), and the reason for it as text (`why`)."""

    slots: int
    why: str


def bound(conf: Mapping[str, str], cores: int) -> Bound | None:
    """Return the upper bound of concurrent tasks, or None if the settings do not determine one.

    Args:
        conf: Settings of the application by key.
        cores: Number of cores of the driver's host.
    """
    master = conf.get("spark.master", "")
    per_task = _number(conf, "spark.task.cpus") or 1
    if found := _LOCAL.fullmatch(master):
        count = 1 if found[1] is None else cores if found[1] == "*" else int(found[1])
        return Bound(count // per_task, _said(f"the master {master} has {count} core{_s(count)}", per_task))
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return _of_executors(int(found[1]), int(found[2]), per_task, f"the master {master}")
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors, key = _number(conf, "spark.dynamicAllocation.maxExecutors"), "spark.dynamicAllocation.maxExecutors"
    else:
        executors, key = _number(conf, "spark.executor.instances"), "spark.executor.instances"
    if master.startswith("spark:"):
        most = _number(conf, "spark.cores.max")
        return None if most is None else Bound(most // per_task, _said(f"spark.cores.max is {most}", per_task))
    if executors is None or not master.startswith(("yarn", "k8s:")):
        return None
    return _of_executors(executors, _number(conf, "spark.executor.cores") or 1, per_task, f"{key}={executors}")


def _of_executors(executors: int, each: int, per_task: int, what: str) -> Bound:
    why = f"{what} means {executors} executor{_s(executors)} of {each} core{_s(each)}"
    return Bound(executors * (each // per_task), _said(why, per_task))


def _said(why: str, per_task: int) -> str:
    return why if per_task == 1 else f"{why}, and spark.task.cpus is {per_task}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _number(conf: Mapping[str, str], key: str) -> int | None:
    text = conf.get(key, "")
    return int(text) if text.isdecimal() else None
