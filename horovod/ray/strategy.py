"""Where workers are to be: what Ray is asked for, and what is said when it has not got it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)

_JOINING = 5.0  # s for nodes that are about to join a cluster that is too small

Resources = Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """``bundles``: resources that are to be together, each on one node; ``strategy``: how they are spread over nodes;
    ``places``: the bundle of each worker, -1: any. ``asked``: in words."""

    bundles: Sequence[Resources]
    strategy: str
    places: Sequence[int]
    asked: str


# Pure


def resources(cpus: int, gpus: int, workers: int = 1) -> dict[str, float]:
    """Of so many workers."""
    return {"CPU": float(cpus * workers)} | ({"GPU": float(gpus * workers)} if gpus else {})


def colocated(hosts: int, per_host: int, cpus: int, gpus: int) -> Plan:
    """The same number of workers on each of several nodes."""
    asked = (
        f"num_hosts={hosts} nodes with room for num_workers_per_host={per_host} workers of {_needs(cpus, gpus)} each"
    )
    places = [host for host in range(hosts) for _ in range(per_host)]
    return Plan([resources(cpus, gpus, per_host)] * hosts, "STRICT_SPREAD", places, asked)


def loose(workers: int, cpus: int, gpus: int, strategy: str) -> Plan:
    """So many workers; ``strategy`` PACK: on as few nodes as possible, SPREAD: on as many; STRICT_ in front: or not at
    all."""
    how = "" if strategy == "PACK" else f", {strategy}"
    asked = f"num_workers={workers} workers of {_needs(cpus, gpus)} each{how}"
    return Plan([resources(cpus, gpus)] * workers, strategy, list(range(workers)), asked)


def within(bundles: Sequence[Resources], workers: int, cpus: int, gpus: int) -> Plan:
    """So many workers within a placement group that exists. Raises ValueError when it is too small."""
    asked = f"{workers} workers of {_needs(cpus, gpus)} each"
    room = sum(fitting(bundle, cpus, gpus) for bundle in bundles)
    if room < workers:
        listed = ", ".join(_shown(bundle) for bundle in bundles)
        raise ValueError(
            f"{asked} were asked for within the current placement group, but its bundles ({listed}) have room for "
            f"{room}; use_current_placement_group=False asks Ray for others"
        )
    return Plan(bundles, "", [-1] * workers, asked)


def fitting(has: Resources, cpus: int, gpus: int) -> int:
    """How many workers fit there."""
    return _times(resources(cpus, gpus), has)


def _times(bundle: Resources, has: Resources) -> int:
    """How often that fits into what there is."""
    return min((int(has.get(name, 0.0) // amount) for name, amount in bundle.items() if amount), default=0)


def lacking(plan: Plan, nodes: Sequence[Resources]) -> str:
    """Why these nodes could not hold it even if nothing else ran there, with what they have; empty: they could."""
    rooms = [_times(plan.bundles[0], node) for node in nodes]
    if plan.strategy == "STRICT_SPREAD":
        room = sum(1 for one in rooms if one)
    elif plan.strategy == "STRICT_PACK":
        room = max(rooms, default=0)
    else:
        room = sum(rooms)
    if room >= len(plan.bundles):
        return ""
    listed = "; ".join(_shown(node) for node in nodes)
    unit = "nodes that fit" if plan.strategy == "STRICT_SPREAD" else "room for"
    return f"the cluster has {unit}: {room}, of {len(plan.bundles)}; its {len(nodes)} nodes have {listed}"


def visible(gpus: Sequence[Sequence[str]], hosts: Sequence[str], rank: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of a rank; nothing without GPUs. ``gpus``, ``hosts``: by rank, what Ray has given it, and
    where it is. All those of the ranks on its host, so that they reach each other's, in an order in which device number
    ``local_rank`` is the rank's own first one."""
    if not any(gpus):
        return {}
    beside = [own for own, host in zip(gpus, hosts, strict=True) if host == hosts[rank]]
    most = max(map(len, beside))
    turns = [own[turn] for turn in range(most) for own in beside if turn < len(own)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(turns))}


def _needs(cpus: int, gpus: int) -> str:
    return f"{cpus} CPU{'s' if cpus != 1 else ''}" + (f" and {gpus} GPU{'s' if gpus != 1 else ''}" if gpus else "")


def _shown(has: Resources) -> str:
    return f"{has.get('CPU', 0.0):g} CPUs and {has.get('GPU', 0.0):g} GPUs"


# With Ray


@dataclass(frozen=True)
class Room:
    """A placement group that is ready. ``own``: made for this, so that nobody else has a use for it."""

    group: PlacementGroup
    places: Sequence[int]
    own: bool

    def give_back(self) -> None:
        if self.own:
            remove_placement_group(self.group)


def current_group(use: bool) -> PlacementGroup | None:
    """The placement group in which this program runs, if it is to be used."""
    return get_current_placement_group() if use else None


def find_room(plan: Plan, group: PlacementGroup | None, timeout: float) -> Room:
    """Waits for Ray to make room, or for a group that exists.

    Raises ValueError when the cluster is too small and does not grow by itself, TimeoutError after ``timeout`` s; both
    say what was asked for and what the cluster has.
    """
    made = placement_group([dict(one) for one in plan.bundles], strategy=plan.strategy) if group is None else group
    try:
        _wait(plan, made, timeout)
    except BaseException:
        if group is None:
            remove_placement_group(made)
        raise
    return Room(made, plan.places, group is None)


def _wait(plan: Plan, group: PlacementGroup, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    ready = [group.ready()]
    if ray.wait(ready, timeout=min(_JOINING, timeout))[0]:
        return
    trouble = lacking(plan, node_resources()) if plan.strategy else ""
    if trouble and not grows():
        raise ValueError(f"{plan.asked} were asked for, but {trouble}")
    if ray.wait(ready, timeout=max(0.0, deadline - time.monotonic()))[0]:
        return
    trouble = trouble or f"what is free now is {_shown(ray.available_resources())}, the rest is in use"
    raise TimeoutError(
        f"waited {timeout:g} s (placement_group_timeout_s) for {plan.asked}, and Ray had no room for them: {trouble}"
    )


def node_resources() -> list[dict[str, float]]:
    """What each node that is alive has."""
    return [node["Resources"] for node in ray.nodes() if lives(node)]


def lives(node: Mapping[str, Any]) -> bool:
    """Return True if the node, as in ``ray.nodes()``, is alive. Ray has both spellings of the key, and what stands for
    it in tests of programs has the one in lower case."""
    return bool(node["Alive"] if "Alive" in node else node["alive"])


def grows() -> bool:
    """Does Ray add nodes to this cluster by itself, as far as it says?"""
    try:
        from ray._private.state import state

        config: Any = state.get_cluster_config()
    except Exception:  # another version of Ray; then whoever asks waits
        return True
    return config is not None and bool(config.node_group_configs)
