"""Worker placement: the resources to request from Ray, and the error messages if the cluster lacks them."""

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

_JOINING = 5.0  # Seconds to wait for more nodes before reporting that the cluster is too small

Resources = Mapping[str, float]


@dataclass(frozen=True)
class PlacementPlan:
    """Resource request to Ray for all workers.

    Attributes:
        bundles: Resources to reserve. All resources of a bundle are on the same node.
        strategy: Ray's placement strategy, or an empty string for an existing placement group.
        places: Bundle index of each worker, or -1 for any bundle.
        needs: Description of the request, for error messages.
    """

    bundles: Sequence[Resources]
    strategy: str
    places: Sequence[int]
    needs: str


# Pure


def resources(cpus: int, gpus: int, workers: int = 1) -> dict[str, float]:
    """Return the resources that the given number of workers needs, in Ray's format."""
    return {"CPU": float(cpus * workers)} | ({"GPU": float(gpus * workers)} if gpus else {})


def colocated(hosts: int, per_host: int, cpus: int, gpus: int) -> PlacementPlan:
    """Return a plan with ``per_host`` workers on each of ``hosts`` nodes."""
    asked = (
        f"num_hosts={hosts} nodes with room for num_workers_per_host={per_host} workers of {_needs(cpus, gpus)} each"
    )
    places = [host for host in range(hosts) for _ in range(per_host)]
    return PlacementPlan([resources(cpus, gpus, per_host)] * hosts, "STRICT_SPREAD", places, asked)


def loose(workers: int, cpus: int, gpus: int, strategy: str) -> PlacementPlan:
    """Return a plan for the given number of workers on any number of nodes.

    With the strategy PACK, the workers use as few nodes as possible. With SPREAD, they use as many as possible.
    STRICT_PACK fails unless all workers fit on one node. STRICT_SPREAD fails unless each worker gets its own node.
    """
    how = "" if strategy == "PACK" else f", {strategy}"
    asked = f"num_workers={workers} workers of {_needs(cpus, gpus)} each{how}"
    return PlacementPlan([resources(cpus, gpus)] * workers, strategy, list(range(workers)), asked)


def within(bundles: Sequence[Resources], workers: int, cpus: int, gpus: int) -> PlacementPlan:
    """Return a plan for workers in an existing placement group. Raises ValueError if the group is too small."""
    needs = f"{workers} workers of {_needs(cpus, gpus)} each"
    room = sum(fitting(bundle, cpus, gpus) for bundle in bundles)
    if room < workers:
        listed = ", ".join(_shown(bundle) for bundle in bundles)
        raise ValueError(
            f"{needs} were requested in the current placement group, but its bundles ({listed}) have room for "
            f"{room}; use_current_placement_group=False requests others from Ray"
        )
    return PlacementPlan(bundles, "", [-1] * workers, needs)


def fitting(has: Resources, cpus: int, gpus: int) -> int:
    """Return how many workers with the given CPUs and GPUs fit into the resources ``has``."""
    return _times(resources(cpus, gpus), has)


def _times(bundle: Resources, has: Resources) -> int:
    """Return how many copies of the bundle fit into available resources."""
    return min((int(has.get(name, 0.0) // amount) for name, amount in bundle.items() if amount), default=0)


def lacking(plan: PlacementPlan, nodes: Sequence[Resources]) -> str:
    """Return an error message if the plan would not fit even on idle nodes, or an empty string."""
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
    """Return a dict with CUDA_VISIBLE_DEVICES for a rank, or an empty dict if no rank has GPUs.

    The variable contains the GPUs of all ranks on the same host, so that ranks can access each other's memory. The
    device with index ``local_rank`` is the first of the rank's own GPUs.

    Args:
        gpus: GPUs that Ray assigned to each rank.
        hosts: Host of each rank.
        rank: Rank for which the dict is created.
    """
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
class Reservation:
    """Placement group that is ready to use.

    Attributes:
        group: Ray placement group.
        places: Index of the bundle of each worker. -1 means any bundle.
        own: True if the group was created for this job and must be removed at its end.
    """

    group: PlacementGroup
    places: Sequence[int]
    own: bool

    def give_back(self) -> None:
        if self.own:
            remove_placement_group(self.group)


def current_group(use: bool) -> PlacementGroup | None:
    """Return the placement group in which this program runs, or None if it runs in none or ``use`` is False."""
    return get_current_placement_group() if use else None


def find_room(plan: PlacementPlan, group: PlacementGroup | None, timeout: float) -> Reservation:
    """Create a placement group, or use an existing one, and wait until it is ready.

    Args:
        plan: Resources to request.
        group: Existing placement group, or None.
        timeout: Seconds to wait.

    Returns:
        The reserved resources.

    Raises:
        ValueError: If the cluster is too small and has no autoscaler. The message contains the resources.
        TimeoutError: If the resources are not free in time. The message contains the resources.
    """
    made = placement_group([dict(one) for one in plan.bundles], strategy=plan.strategy) if group is None else group
    try:
        _wait(plan, made, timeout)
    except BaseException:
        if group is None:
            remove_placement_group(made)
        raise
    return Reservation(made, plan.places, group is None)


def _wait(plan: PlacementPlan, group: PlacementGroup, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    ready = [group.ready()]
    if ray.wait(ready, timeout=min(_JOINING, timeout))[0]:
        return
    trouble = lacking(plan, node_resources()) if plan.strategy else ""
    if trouble and not grows():
        raise ValueError(f"{plan.needs} were requested, but {trouble}")
    if ray.wait(ready, timeout=max(0.0, deadline - time.monotonic()))[0]:
        return
    trouble = trouble or f"{_shown(ray.available_resources())} are free now, the rest is in use"
    raise TimeoutError(
        f"waited {timeout:g} s (placement_group_timeout_s) for {plan.needs}, and Ray had no room for them: {trouble}"
    )


def node_resources() -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [node["Resources"] for node in ray.nodes() if lives(node)]


def lives(node: Mapping[str, Any]) -> bool:
    """Return True if the node, an element of ``ray.nodes()``, is alive.

    Ray spells the key for this either "Alive" or "alive". Mocks in tests often have only the lower-case key.
    """
    return bool(node["Alive"] if "Alive" in node else node["alive"])


def grows() -> bool:
    """Return True if the cluster has an autoscaler, or if this cannot be determined."""
    try:
        from ray._private.state import state

        config: Any = state.get_cluster_config()
    except Exception:  # The state API is private and can change. If it fails, assume that there is an autoscaler.
        return True
    return config is not None and bool(config.node_group_configs)
