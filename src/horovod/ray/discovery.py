"""Host discovery for elastic jobs: the nodes of Ray's cluster."""

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
    """Host discovery whose hosts are the cluster's live nodes, with a slot for each worker that fits on them."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1) -> None:
        self._cpus, self._gpus = given.needs("slot", cpus_per_slot, use_gpu, gpus_per_slot if use_gpu else None)
        self.names = Names()
        """Names of the nodes, by which hosts are known."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the number of slots by host.

        A host's name is the node's address. If several nodes have the same address, all but the first one have a part
        of their id appended.
        """
        return cluster.slots(ray.nodes(), self.names, self._cpus, self._gpus)


class TestDiscovery(RayHostDiscovery):
    """Host discovery for tests of elastic programs, which returns a random choice of the cluster's hosts.

    Every ``change_frequency_s`` seconds it chooses from ``min_hosts`` to ``max_hosts`` hosts. Workers on removed hosts
    are notified, or killed if ``_graceful`` is False.
    """

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
        """Return the number of slots by host, for the hosts that are chosen at present."""
        found = super().find_available_hosts_and_slots()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            kept = random.randint(min(self._least, len(found)), min(self._most, len(found)))
            before = [host for host in self._chosen if host in found]  # keep at least one of these
            stay = random.sample(before, 1) if before else []
            others = [host for host in found if host not in stay]
            chosen = {*stay, *random.sample(others, max(0, kept - len(stay)))}
            self._chosen = [host for host in found if host in chosen]
            if self._verbose:
                print(f"horovod: hosts are now {', '.join(self._chosen)}", file=sys.stderr, flush=True)
        return {host: found[host] for host in self._chosen if host in found}
