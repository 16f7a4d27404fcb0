"""Queries to the Ray cluster: nodes for workers, the driver's address, and hosts for elastic jobs."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray
from ray.util import get_node_ip_address

from horovod.common.network import interfaces
from horovod.common.store.membership import MembershipControl
from horovod.ray import settings as given
from horovod.ray import strategy
from horovod.runner.base.arguments import integer, seconds
from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.external_workers import workers as external_workers
from horovod.runner.external_workers.assignment import Assignment, ExternalWorker
from horovod.runner.external_workers.workers import ExternalWorkers
from horovod.runner.plan.hosts import Machines, Slot


def require() -> None:
    """Raise RuntimeError if this program is not connected to Ray."""
    if not ray.is_initialized():
        raise RuntimeError(
            "this program is not connected to Ray: call ray.init() before start(), or ray.init(address=...)"
        )


def address(nics: Collection[str]) -> str:
    """Return the address at which workers can reach the driver on this host.

    Args:
        nics: Network interfaces to use. If empty, use the address that Ray uses.

    Raises:
        ValueError: If this host has none of the interfaces.
    """
    if not nics:
        return str(get_node_ip_address())
    found = {one.name: one for one in interfaces.scan() if one.up and one.addresses}
    for name in nics:
        if name in found:
            return found[name].addresses[0].text
    here = interfaces.describe(list(found.values()))
    raise ValueError(f"nics must name an interface of each host, got {', '.join(nics)}; this host has {here}")


def variables(nics: Collection[str]) -> dict[str, str]:
    """Return the environment variables for all workers.

    They are this program's settings, and variables that make the engine and NCCL use the interfaces `nics`.
    """
    shared, names = external_workers.passed_on(os.environ), ",".join(nics)
    return shared | ({"HOROVOD_GLOO_IFACE": names, "NCCL_SOCKET_IFNAME": names} if nics else {})


def open_servers(
    nics: Collection[str],
    own: Mapping[str, str],
    on_exit: Callable[[int, str], None],
    control: MembershipControl | None = None,
) -> tuple[ExternalWorkers, dict[str, str]]:
    """Create the servers in the driver to which a job's workers connect.

    Args:
        nics: Network interfaces to use, as in ``address``.
        own: Environment variables for the workers, in addition to this program's settings.
        on_exit: Function to call with the number of a lost worker and a description. See ``ExternalWorkers``.
        control: Membership server of an elastic job.

    Returns:
        Servers of the job, and environment variables for all workers.

    Raises:
        The same exceptions as ``ExternalWorkers`` and ``address``.
    """
    shared = variables(nics) | dict(own)
    return ExternalWorkers(address(nics), on_exit, control, shared), shared


def assignments(
    external: ExternalWorkers,
    slots: Sequence[Slot],
    workers: Sequence[ExternalWorker],
    gpus: Sequence[Sequence[str]],
    shared: Mapping[str, str],
    seconds: float,
) -> list[Assignment]:
    """Assign the ranks of a fixed-size job to its workers.

    Args:
        external: Servers in the driver to which the workers connect (see ``open_servers``).
        slots: Hosts and local ranks, by rank.
        workers: Processes of the workers, by rank.
        gpus: GPUs that Ray assigned to each worker, by rank.
        shared: Environment variables of all workers.
        seconds: Seconds within which workers must join the job.

    Returns:
        Assignments by rank.
    """
    hosts = [slot.hostname for slot in slots]
    assigned = []
    for slot, worker in zip(slots, workers, strict=True):
        torch = external_workers.of_torch(slot, slots, workers[0], shared)
        own = {**shared, **external_workers.of_slot(slot), **torch, **strategy.visible(gpus, hosts, slot.rank)}
        assigned.append(external.assign(slot.rank, worker, own, seconds))
    return assigned


class HostNames:
    """Table of node names. A node's name is its address, plus a part of its id if several nodes share that address.

    A node keeps its name while the table exists. The table does not access the cluster.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # Node names, keyed by node id.
        self._machine_of: dict[str, str] = {}  # Host names, keyed by node name.
        self._machines = Machines()

    def of(self, node: Mapping[str, Any]) -> str:
        """Return the name of a node, given as an element of ``ray.nodes()``."""
        number, address = node["NodeID"], node["NodeManagerAddress"]
        if number not in self._names:
            taken = address in self._names.values()
            name = self._names[number] = f"{address}-{number[:8]}" if taken else address
            host = node["NodeManagerHostname"]
            self._machine_of[name] = self._machines.name(f"{host} {address}", host)
        return self._names[number]

    def machine(self, name: str) -> str:
        """Return the name of the host on which a node runs. Several nodes can run on one host."""
        return self._machine_of.get(name, name)

    def node(self, name: str) -> str | None:
        """Return the id of the node with this name, or None if there is none."""
        known = list(self._names.items())  # Copy, because the discovery thread can add nodes.
        return next((number for number, one in known if one == name), None)


def slots(nodes: Sequence[Mapping[str, Any]], names: HostNames, cpus: int, gpus: int) -> dict[str, int]:
    """Return a mapping from node name to the number of workers that fit on that live node.

    Args:
        nodes: Result of ``ray.nodes()``.
        names: Table of the nodes' names.
        cpus: Number of CPUs per worker.
        gpus: Number of GPUs per worker.
    """
    found = {}
    for node in nodes:
        if strategy.lives(node) and (room := strategy.fitting(node["Resources"], cpus, gpus)) > 0:
            found[names.of(node)] = room
    return found


def find(nodes: Sequence[Mapping[str, Any]], host: str) -> str | None:
    """Return the id of the live node with this address, host name or node name, or None."""
    keys = ("NodeManagerAddress", "NodeManagerHostname", "NodeName")
    return next(
        (node["NodeID"] for node in nodes if strategy.lives(node) and host in (node[key] for key in keys)), None
    )


# -- host discovery for elastic jobs ---------------------------------------------------------------------------------


class RayHostDiscovery(HostDiscovery):
    """Host discovery that reports the live nodes of the cluster, with one slot for each worker that fits."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1) -> None:
        self._cpus, self._gpus = given.needs("slot", cpus_per_slot, use_gpu, gpus_per_slot if use_gpu else None)
        self.names = HostNames()
        """HostNames of the nodes, by which hosts are known."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return a mapping from host name to number of slots.

        The host name is the node's address. If several nodes share an address, a part of the node id is appended to all
        names but the first.
        """
        return slots(ray.nodes(), self.names, self._cpus, self._gpus)


class TestDiscovery(RayHostDiscovery):
    """Host discovery for tests of elastic programs, which returns a random choice of the cluster's hosts.

    Every ``change_frequency_s`` seconds, it chooses between ``min_hosts`` and ``max_hosts`` hosts. Workers on removed
    hosts are notified, or killed if ``_graceful`` is False.
    """

    __test__ = False  # Tell pytest that this class is not a test.

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)
        self._least = integer("min_hosts", min_hosts, 1)
        self._max_hosts = integer("max_hosts", max_hosts, self._least)
        self._every = seconds("change_frequency_s", change_frequency_s, given.LONGEST)
        self._verbose = verbose
        self.abrupt = not _graceful
        self._chosen: list[str] = []
        self._next = 0.0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the number of slots by host name, for the currently chosen hosts."""
        found = super().find_available_hosts_and_slots()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            kept = random.randint(min(self._least, len(found)), min(self._max_hosts, len(found)))
            before = [host for host in self._chosen if host in found]  # Keep at least one of the current hosts.
            stay = random.sample(before, 1) if before else []
            others = [host for host in found if host not in stay]
            chosen = {*stay, *random.sample(others, max(0, kept - len(stay)))}
            self._chosen = [host for host in found if host in chosen]
            if self._verbose:
                print(f"horovod: hosts are now {', '.join(self._chosen)}", file=sys.stderr, flush=True)
        return {host: found[host] for host in self._chosen if host in found}
