"""Hosts that Slurm, SageMaker or Vertex AI assigned to a job, parsed from the data that these services provide."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common import launchers
from horovod.runner.base.job_result import LaunchError
from horovod.runner.plan.hosts import Host

# `sinfo` states (column %T, without suffixes) of nodes that Slurm has taken or is about to take out of service.
_UNUSABLE = ("drain", "down", "fail", "error", "unknown", "future", "power", "reboot", "no_resp")
_MARKS = "*~#!%$@^-+&"


@dataclass(frozen=True)
class Allocation:
    """Slurm allocation in which this process runs.

    Attributes:
        job: Job id of the allocation.
        slots: Number of tasks on each node at the time of the allocation.
    """

    job: str
    slots: Mapping[str, int]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the Slurm allocation in which this process runs, or None.

    Raises:
        LaunchError: If a variable is invalid.
    """
    job, names = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_NODELIST", "")
    if re.fullmatch("[0-9]{1,18}", job) is None or not names:
        return None
    try:
        nodes = launchers.expand_hosts(names)
        counts = launchers.expand_tasks(environ["SLURM_TASKS_PER_NODE"]) if environ.get("SLURM_TASKS_PER_NODE") else []
    except ValueError as error:
        raise LaunchError(f"SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE: {error}") from None
    # If SLURM_TASKS_PER_NODE is missing or describes a job step, assume one task per node.
    if len(counts) != len(nodes):
        counts = [1] * len(nodes)
    return Allocation(job, {node: max(1, count) for node, count in zip(nodes, counts, strict=True)})


def nodes_of(text: str, job: str) -> list[str]:
    """Return the nodes of a job from the `state|nodes` output of squeue. Raises LaunchError if there are none."""
    state, _, names = text.strip().partition("|")
    try:
        nodes = launchers.expand_hosts(names)
    except ValueError as error:
        raise LaunchError(f"squeue: {error}") from None
    if not nodes:
        raise LaunchError(f"Slurm's job {job} has no nodes (state {state or 'unknown'})")
    return nodes


def usable(text: str, nodes: Sequence[str]) -> list[str]:
    """Return the nodes that are neither drained nor down, from the `node|state` lines of sinfo.

    A node that belongs to several partitions has several lines. A node without a line is not usable.
    """
    good: set[str] = set()
    bad: set[str] = set()
    for line in text.splitlines():
        name, _, state = line.strip().partition("|")
        is_bad = state.lower().rstrip(_MARKS).startswith(_UNUSABLE)
        (bad if is_bad else good).add(name)
    return [node for node in nodes if node in good and node not in bad]


def lines(nodes: Sequence[str], slots: Mapping[str, int], each: int | None) -> str:
    """Format the nodes as the output of a discovery script.

    Args:
        nodes: Nodes to list.
        slots: Number of slots on each node at the time of the allocation. Nodes that were added later get the same
            number as the first node.
        each: Number of slots on every node, which overrides `slots`, or None.
    """
    first = next(iter(slots.values()), 1)
    return "".join(f"{node}:{slots.get(node, first) if each is None else each}\n" for node in nodes)


# SageMaker's resource configuration and Vertex AI's CLUSTER_SPEC are parsed as these services document them.

SAGEMAKER_FILE = "/opt/ml/input/config/resourceconfig.json"
"""File with SageMaker's resource configuration. It exists in every container, whatever the image."""
# Worker pools of Vertex AI in which ranks run. Other pools contain parameter servers, reduction servers and evaluators.
_TRAINING_POOLS = ("workerpool0", "workerpool1")


@dataclass(frozen=True)
class Machines:
    """Machines that a training service assigned to a job.

    Attributes:
        service: Name of the training service.
        names: Names of the machines. The job must be started on the first one.
        here: Name of this machine.
        gpus: Number of GPUs of each machine, or 0 if unknown.
        port: Port at which the machines can be reached, or 0 for any port.
    """

    service: str
    names: tuple[str, ...]
    here: str
    gpus: int = 0
    port: int = 0

    def hosts(self, size: int) -> list[Host]:
        """Return the hosts for `size` processes.

        Each host gets one slot per GPU. If the hosts have no GPUs, the processes are distributed evenly.

        Raises:
            LaunchError: If this machine is not the first of the assigned machines.
        """
        if self.here != self.names[0]:
            raise LaunchError(
                f"{self.service} has assigned {len(self.names)} machines to this job, and this one is {self.here!r}. "
                f"Run horovodrun on the first, {self.names[0]!r}, which reaches the others by ssh; run an ssh server "
                "here until it has ended, or name the hosts to use with -H"
            )
        each = self.gpus or -(-size // len(self.names))
        return [Host(name, each) for name in self.names]


def machines(environ: Mapping[str, str], resource_config: str | None = None) -> Machines | None:
    """Return the machines that a training service assigned to the job.

    Return None if there is only one machine or no training service.

    Args:
        environ: Environment variables of the container.
        resource_config: Contents of SAGEMAKER_FILE, or None if the file does not exist.

    Raises:
        LaunchError: If a variable or file is invalid.
    """
    return _sagemaker(environ, resource_config) or _vertex(environ)


def _sagemaker(environ: Mapping[str, str], resource_config: str | None) -> Machines | None:
    source, text = "SM_RESOURCE_CONFIG", environ.get("SM_RESOURCE_CONFIG", "")
    if not text and resource_config is not None:
        source, text = SAGEMAKER_FILE, resource_config
    if text:
        config = _object(source, text)
    elif environ.get("SM_HOSTS"):  # If the file is missing, use the variable that SageMaker's training toolkit sets.
        source = "SM_HOSTS"
        config = {"hosts": _json(source, environ[source])}
    else:
        return None
    here = environ.get("SM_CURRENT_HOST") or config.get("current_host")
    made = _make("SageMaker", source, _hosts_of_group(config), here)
    return None if made is None else replace(made, gpus=_count(environ, "SM_NUM_GPUS"))


def _hosts_of_group(config: Mapping[str, Any]) -> Any:
    """Return the hosts in this machine's group, because all ranks need machines of the same type.

    If there are no groups, return all hosts.
    """
    groups = config.get("instance_groups")
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and group.get("instance_group_name") == config.get("current_group_name"):
            return group.get("hosts")
    return config.get("hosts")


def _vertex(environ: Mapping[str, str]) -> Machines | None:
    try:
        spec = json.loads(environ.get("CLUSTER_SPEC", ""))
    except ValueError:
        return None  # The variable is missing or not JSON, so Vertex AI has not set it.
    cluster, task = (spec.get("cluster"), spec.get("task")) if isinstance(spec, dict) else (None, None)
    if not isinstance(cluster, dict) or not isinstance(task, dict) or not all(map(_are_names, cluster.values())):
        return None
    training = [name for pool in _TRAINING_POOLS for name in cluster.get(pool, [])]
    if not training:
        return None
    pools = {pool: [name.partition(":")[0] for name in cluster[pool]] for pool in cluster}
    names = [name.partition(":")[0] for name in training]
    port = training[0].partition(":")[2]
    own, index = pools.get(str(task.get("type")), []), task.get("index", 0)
    here = own[index] if isinstance(index, int) and 0 <= index < len(own) else None
    made = _make("Vertex AI", "CLUSTER_SPEC", names, here)
    return None if made is None else replace(made, port=int(port) if re.fullmatch("[0-9]{1,5}", port) else 0)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)


def _make(service: str, source: str, names: Any, here: Any) -> Machines | None:
    """Check the names of the machines, and return the machines.

    Return None for a single machine, because a service might not set the machine's own name then.

    Raises:
        LaunchError: If the names are invalid, or the name of this machine is missing.
    """
    if not names or not _are_names(names):
        raise LaunchError(f"the hosts in {source} must be a list of names, got {names!r}")
    if len(set(names)) == 1:
        return None
    if not isinstance(here, str) or not here:
        raise LaunchError(f"{source} does not say which of the hosts {', '.join(names)} this one is")
    return Machines(service, tuple(dict.fromkeys(names)), here)


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip() or "0"
    if not text.isascii() or not text.isdecimal():
        raise LaunchError(f"{name} must be an integer of 0 or more, got {text!r}")
    return int(text)


def _json(source: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise LaunchError(f"{source} must be JSON, got {text[:200]!r}: {error}") from None


def _object(source: str, text: str) -> dict[str, Any]:
    value = _json(source, text)
    if not isinstance(value, dict):
        raise LaunchError(f"{source} must be a JSON object, got {text[:200]!r}")
    return value
