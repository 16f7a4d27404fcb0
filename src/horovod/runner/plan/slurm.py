"""Nodes of a Slurm allocation, from its variables and the output of Slurm's programs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.common import launchers
from horovod.runner.base.errors import LaunchError

# States in the %T column of `sinfo`, without marks, of nodes that Slurm has removed or is about to.
_UNUSABLE = ("drain", "down", "fail", "error", "unknown", "future", "power", "reboot", "no_resp")
_MARKS = "*~#!%$@^-+&"


@dataclass(frozen=True)
class Allocation:
    """A Slurm allocation: its job id, and the tasks of each node when it was made."""

    job: str
    slots: Mapping[str, int]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of a batch script or a shell of `salloc`, or None outside of one.

    Raises:
        LaunchError: A variable cannot be parsed.
    """
    job, names = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_NODELIST", "")
    if re.fullmatch("[0-9]{1,18}", job) is None or not names:
        return None
    try:
        nodes = launchers.expand_hosts(names)
        counts = launchers.expand_tasks(environ["SLURM_TASKS_PER_NODE"]) if environ.get("SLURM_TASKS_PER_NODE") else []
    except ValueError as error:
        raise LaunchError(f"SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE: {error}") from None
    if len(counts) != len(nodes):  # the variable is missing, or belongs to a job step
        counts = [1] * len(nodes)
    return Allocation(job, {node: max(1, count) for node, count in zip(nodes, counts, strict=True)})


def nodes_of(text: str, job: str) -> list[str]:
    """Return the nodes of a job from the `state|nodes` output of squeue. Raises LaunchError when it has none."""
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

    A node in several partitions has several lines. A node without any line is not usable.
    """
    good: set[str] = set()
    bad: set[str] = set()
    for line in text.splitlines():
        name, _, state = line.strip().partition("|")
        is_bad = state.lower().rstrip(_MARKS).startswith(_UNUSABLE)
        (bad if is_bad else good).add(name)
    return [node for node in nodes if node in good and node not in bad]


def lines(nodes: Sequence[str], slots: Mapping[str, int], each: int | None) -> str:
    """Return the nodes as a discovery script prints them.

    Args:
        nodes: Nodes to print.
        slots: Slots by node when the allocation was made; nodes added later get as many as the first one.
        each: Slots of every node in place of these.
    """
    first = next(iter(slots.values()), 1)
    return "".join(f"{node}:{slots.get(node, first) if each is None else each}\n" for node in nodes)
