"""The nodes of a Slurm allocation: from its variables, and from what Slurm's programs print. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.common.launchers import hostlist
from horovod.runner.base.errors import LaunchError

# Of `sinfo`'s %T without its marks: nodes that Slurm has taken away, or is about to.
_UNUSABLE = ("drain", "down", "fail", "error", "unknown", "future", "power", "reboot", "no_resp")
_MARKS = "*~#!%$@^-+&"


@dataclass(frozen=True)
class Allocation:
    """`job`: its number. `slots`: tasks by node, as it was made."""

    job: str
    slots: Mapping[str, int]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Of a batch script or a shell of `salloc`; None outside of one.

    Raises LaunchError naming a variable that cannot be understood.
    """
    job, names = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_NODELIST", "")
    if re.fullmatch("[0-9]{1,18}", job) is None or not names:
        return None
    try:
        nodes = hostlist.expand(names)
        counts = hostlist.tasks(environ["SLURM_TASKS_PER_NODE"]) if environ.get("SLURM_TASKS_PER_NODE") else []
    except ValueError as error:
        raise LaunchError(f"SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE: {error}") from None
    if len(counts) != len(nodes):  # a step's, or none
        counts = [1] * len(nodes)
    return Allocation(job, {node: max(1, count) for node, count in zip(nodes, counts, strict=True)})


def nodes_of(text: str, job: str) -> list[str]:
    """The nodes that a job has, from the `state|nodes` of squeue. Raises LaunchError when it has none any more."""
    state, _, names = text.strip().partition("|")
    try:
        nodes = hostlist.expand(names)
    except ValueError as error:
        raise LaunchError(f"squeue: {error}") from None
    if not nodes:
        raise LaunchError(f"Slurm's job {job} has no nodes (state {state or 'unknown'})")
    return nodes


def usable(text: str, nodes: Sequence[str]) -> list[str]:
    """Those of the nodes that are neither drained nor lost, from the `node|state` lines of sinfo. A node in several
    partitions has several lines; one without any is as good as gone."""
    good: set[str] = set()
    bad: set[str] = set()
    for line in text.splitlines():
        name, _, state = line.strip().partition("|")
        is_bad = state.lower().rstrip(_MARKS).startswith(_UNUSABLE)
        (bad if is_bad else good).add(name)
    return [node for node in nodes if node in good and node not in bad]


def lines(nodes: Sequence[str], slots: Mapping[str, int], each: int | None) -> str:
    """As a discovery script prints them. `slots`: as the allocation was made; a node that it has got since has as many
    as the first one. `each`: in place of those."""
    first = next(iter(slots.values()), 1)
    return "".join(f"{node}:{slots.get(node, first) if each is None else each}\n" for node in nodes)
