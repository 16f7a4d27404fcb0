"""What is asked of Ray's cluster: the nodes that workers can be on, and this driver's address."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray
from ray.util import get_node_ip_address

from horovod.common.network import interfaces
from horovod.common.store.front import Front
from horovod.ray import strategy
from horovod.runner.cluster.placement import Machines
from horovod.runner.plan.hosts import Slot
from horovod.runner.resident import residence
from horovod.runner.resident.residence import Residence
from horovod.runner.resident.seat import Resident, Seat


def require() -> None:
    """Raises RuntimeError when this program is not connected to Ray."""
    if not ray.is_initialized():
        raise RuntimeError(
            "this program is not connected to Ray: call ray.init() before start(), or ray.init(address=...)"
        )


def address(nics: Collection[str]) -> str:
    """Of this host, by which workers reach the driver. ``nics``: the interfaces to be used; none: Ray's own address.
    Raises ValueError naming one that is not there."""
    if not nics:
        return str(get_node_ip_address())
    found = {one.name: one for one in interfaces.scan() if one.up and one.addresses}
    for name in nics:
        if name in found:
            return found[name].addresses[0].text
    here = interfaces.describe(list(found.values()))
    raise ValueError(f"nics is {', '.join(nics)}, accepted are interfaces of all hosts, here {here}")


def variables(nics: Collection[str]) -> dict[str, str]:
    """What all workers get of this program's settings. ``nics``: for the engine and for NCCL."""
    shared, names = residence.passed_on(os.environ), ",".join(nics)
    return shared | ({"HOROVOD_GLOO_IFACE": names, "NCCL_SOCKET_IFNAME": names} if nics else {})


def open_residence(
    nics: Collection[str], own: Mapping[str, str], gone: Callable[[int, str], None], front: Front | None = None
) -> tuple[Residence, dict[str, str]]:
    """The driver's side of a job, and the variables of all its workers: ``own`` and this program's settings. ``gone``,
    ``front``, and what is raised, as of ``Residence``; ``nics`` as of ``address``."""
    shared = variables(nics) | dict(own)
    return Residence(address(nics), gone, front, shared), shared


def seats(
    made: Residence,
    slots: Sequence[Slot],
    residents: Sequence[Resident],
    gpus: Sequence[Sequence[str]],
    shared: Mapping[str, str],
    seconds: float,
) -> list[Seat]:
    """In ``made``, of the workers of a fixed number, by rank, as is all that is given here. ``gpus``: what Ray has
    given each; ``seconds`` to take the seat."""
    hosts = [slot.hostname for slot in slots]
    told = []
    for slot, resident in zip(slots, residents, strict=True):
        own = {**shared, **residence.of_slot(slot), **strategy.visible(gpus, hosts, slot.rank)}
        told.append(made.seat(slot.rank, resident, own, seconds))
    return told


class Names:
    """Names of nodes: the address of each, with a part of its id where another one of the same address was there
    before. A node keeps its name. Pure, but for what it remembers."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by id
        self._machine_of: dict[str, str] = {}  # by name
        self._machines = Machines()

    def of(self, node: Mapping[str, Any]) -> str:
        """Of a node as in ``ray.nodes()``."""
        number, address = node["NodeID"], node["NodeManagerAddress"]
        if number not in self._names:
            taken = address in self._names.values()
            name = self._names[number] = f"{address}-{number[:8]}" if taken else address
            host = node["NodeManagerHostname"]
            self._machine_of[name] = self._machines.name(f"{host} {address}", host)
        return self._names[number]

    def machine(self, name: str) -> str:
        """Several nodes may be on one machine."""
        return self._machine_of.get(name, name)

    def node(self, name: str) -> str | None:
        """The id of the node that goes by this name."""
        known = list(self._names.items())  # at once: what finds hosts adds to it, in another thread
        return next((number for number, one in known if one == name), None)


def slots(nodes: Sequence[Mapping[str, Any]], names: Names, cpus: int, gpus: int) -> dict[str, int]:
    """How many workers with so many CPUs and GPUs each node that is alive has room for, by its name; those without any
    are left out. ``nodes``: as ``ray.nodes()`` returns them."""
    found = {}
    for node in nodes:
        if strategy.lives(node) and (room := strategy.fitting(node["Resources"], cpus, gpus)) > 0:
            found[names.of(node)] = room
    return found


def find(nodes: Sequence[Mapping[str, Any]], host: str) -> str | None:
    """The id of a node that is alive and has this address, host name or name."""
    keys = ("NodeManagerAddress", "NodeManagerHostname", "NodeName")
    return next(
        (node["NodeID"] for node in nodes if strategy.lives(node) and host in (node[key] for key in keys)), None
    )
