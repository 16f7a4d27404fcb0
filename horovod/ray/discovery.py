"""Hosts of elastic jobs: the nodes of Ray's cluster."""

from __future__ import annotations

import random
import sys
import time

import ray

from horovod.ray import cluster
from horovod.ray import settings as given
from horovod.ray.cluster import Names
from horovod.runner.base.arguments import integer, seconds
from horovod.runner.elastic.discovery import HostDiscovery


class RayHostDiscovery(HostDiscovery):
    """Hosts are the nodes of the cluster that are alive; slots, how many workers they have the resources for."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1) -> None:
        self._cpus, self._gpus = given.needs("slot", cpus_per_slot, use_gpu, gpus_per_slot if use_gpu else None)
        self.names = Names()
        """Which node is meant by a host's name."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """By the node's address; where several nodes have the same, all but the first have a part of their id behind
        it."""
        return cluster.slots(ray.nodes(), self.names, self._cpus, self._gpus)


class TestDiscovery(RayHostDiscovery):
    """For tests of elastic programs: of the cluster's hosts a number between ``min_hosts`` and ``max_hosts``, chosen
    anew every ``change_frequency_s`` s. ``_graceful``: workers of a host that goes are told; else they are killed."""

    __test__ = False  # for pytest

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
        self._most = integer("max_hosts", max_hosts, self._least)
        self._every = seconds("change_frequency_s", change_frequency_s, given.LONGEST)
        self._verbose = verbose
        self.abrupt = not _graceful
        self._chosen: list[str] = []
        self._next = 0.0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Some of the hosts."""
        found = super().find_available_hosts_and_slots()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            kept = random.randint(min(self._least, len(found)), min(self._most, len(found)))
            before = [host for host in self._chosen if host in found]  # one of these at least has to stay
            stay = random.sample(before, 1) if before else []
            others = [host for host in found if host not in stay]
            chosen = {*stay, *random.sample(others, max(0, kept - len(stay)))}
            self._chosen = [host for host in found if host in chosen]
            if self._verbose:
                print(f"horovod: hosts are now {', '.join(self._chosen)}", file=sys.stderr, flush=True)
        return {host: found[host] for host in self._chosen if host in found}
