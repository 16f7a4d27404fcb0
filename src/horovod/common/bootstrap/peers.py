"""Members of a job, their grouping into nodes, and the connections that they need.

A rank has three kinds of connections to its peers:

- node: a Unix socket from a rank to its node's leader. It transfers the descriptors of shared memory and then serves as
  control link.
- control: a TCP connection from the leader of a node to rank 0.
- data: a TCP connection between every two ranks on different nodes. The lower rank listens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from horovod._version import __version__
from horovod.common.communicators import Sets, SetSpec, agree_on_sets
from horovod.common.frontends import Job
from horovod.common.network.interfaces import Endpoint


class Peer(msgspec.Struct, array_like=True):
    """Information that a rank publishes about itself for the other ranks."""

    version: str
    world_rank: int
    hostname: str
    """Value of HOROVOD_HOSTNAME."""
    machine: str
    """Identifier that is equal for ranks that can share memory."""
    pid: int
    network: str
    """Identifier that is equal for ranks that share a loopback interface."""
    endpoints: list[Endpoint]
    """Addresses of the rank's TCP listeners, best first."""
    unix_name: str
    """Name of the rank's listener in the abstract Unix namespace."""
    cpus: list[int]
    """CPU cores on which the rank can run."""
    shared: dict[str, Any]
    """The rank's values of the settings that must be equal on all ranks."""
    dynamic: bool
    process_sets: list[SetSpec]
    ciphers: list[str]
    """Ciphers that the rank supports, fastest first."""


class VersionedPeer(msgspec.Struct, array_like=True):
    """Fields of ``Peer`` that all versions of horovod can decode."""

    version: str
    world_rank: int
    hostname: str


def label(rank: int, peer: Peer) -> str:
    """Return the rank's label for messages, with its host and process id."""
    return f"rank {rank} (host {peer.hostname}, pid {peer.pid})"


def decode_peers(values: Sequence[bytes], first: int = 0) -> list[Peer]:
    """Decode the records of consecutive ranks, starting with rank ``first``.

    Raises:
        ValueError: If a rank runs another version of horovod. The message names the rank and both versions.
    """
    plain = [msgspec.msgpack.decode(value, type=VersionedPeer) for value in values]
    for rank, peer in enumerate(plain, first):
        if peer.version != __version__:
            raise ValueError(
                f"rank {rank} (host {peer.hostname}) runs horovod {peer.version}, this process runs {__version__}; "
                "install "
                "the same version everywhere"
            )
    return [msgspec.msgpack.decode(value, type=Peer) for value in values]


def check_agreement(peers: Sequence[Peer]) -> tuple[Sets, ...]:
    """Check that all ranks passed the same process sets to ``init``.

    Returns:
        For each entry of the list ``process_sets`` that was passed to ``init``, the sets that result from it.

    Raises:
        ValueError: If the ranks' sets differ. Raised on all ranks; the message names the difference.
    """
    first = peers[0]
    for rank, peer in enumerate(peers):
        if peer.dynamic != first.dynamic:
            raise ValueError(
                f"process sets are {'dynamic' if first.dynamic else 'static'} on {label(0, first)} but "
                f"{'dynamic' if peer.dynamic else 'static'} on {label(rank, peer)}"
            )
    given = [peer.process_sets for peer in peers]
    return agree_on_sets(given, [peer.world_rank for peer in peers], lambda rank: label(rank, peers[rank]))


@dataclass(frozen=True)
class Plan:
    """Structure of the job as seen by one rank. Ranks are indices into the list of peers."""

    me: int
    node_of: list[int]
    """Node of each rank. Nodes are numbered in order of their first ranks."""
    local: list[int]
    """Ranks of this node. The first rank is the node's leader."""
    parent: int
    """Rank to which this rank has a control link: the node's leader, or rank 0 for leaders. -1 for rank 0."""
    remote: list[int]
    """Ranks on other nodes, with one data connection each."""
    leaders: list[int]
    """Leaders of all nodes."""

    @property
    def leader(self) -> int:
        """First rank of this rank's node, which leads the node."""
        return self.local[0]

    @property
    def leads(self) -> bool:
        """True if this rank is the first rank of its node."""
        return self.me == self.leader

    @property
    def local_children(self) -> list[int]:
        """This node's ranks that have a control link to this rank."""
        return self.local[1:] if self.leads else []

    @property
    def remote_children(self) -> list[int]:
        """Leaders of other nodes that have a control link to this rank."""
        return self.leaders[1:] if self.me == 0 else []


def node_of(peer: Peer) -> tuple[str, str]:
    """Return the node that a rank belongs to. Ranks with the same host name and machine id form a node."""
    return peer.hostname, peer.machine


def make_plan(me: int, peers: Sequence[Peer]) -> Plan:
    """Derive the job's structure, as seen by rank ``me``, from all ranks' records."""
    numbers: dict[tuple[str, str], int] = {}
    nodes = [numbers.setdefault(node_of(peer), len(numbers)) for peer in peers]
    leaders = [nodes.index(node) for node in range(len(numbers))]
    local = [rank for rank, node in enumerate(nodes) if node == nodes[me]]
    parent = (0 if me > 0 else -1) if me == local[0] else local[0]
    remote = [rank for rank, node in enumerate(nodes) if node != nodes[me]]
    return Plan(me, nodes, local, parent, remote, leaders)


def make_first_plan(me: int, leader: int) -> Plan:
    """Create a plan that contains only the link to the node's leader."""
    return Plan(me, [], [leader, me], leader, [], [leader])


def make_job(me: int, hostnames: Sequence[str], pids: Sequence[int], dynamic: bool, elastic: bool) -> Job:
    """Create the job. Local and cross ranks are computed from host names."""
    index_on_host: list[int] = []
    counts: dict[str, int] = {}
    for name in hostnames:
        index_on_host.append(counts.get(name, 0))
        counts[name] = index_on_host[-1] + 1
    mine = index_on_host[me]
    # Hosts that have a rank with the same local rank as this rank, in order of their first ranks.
    across = [name for name, count in counts.items() if count > mine]
    return Job(
        rank=me,
        size=len(hostnames),
        local_rank=mine,
        local_size=counts[hostnames[me]],
        cross_rank=across.index(hostnames[me]),
        cross_size=len(across),
        homogeneous=len(set(counts.values())) == 1,
        dynamic_process_sets=dynamic,
        elastic=elastic,
        hosts=tuple(hostnames),
        pids=tuple(pids),
    )


NODE, CONTROL, DATA = 1, 2, 3
KIND_NAMES = {NODE: "node", CONTROL: "control", DATA: "data"}

Link = tuple[int, int]
"""Link of a rank, as (kind, rank at the other end)."""


def required_links(plan: Plan, kinds: Sequence[int]) -> tuple[list[Link], list[Link]]:
    """Return the links that this rank opens to peers, and the links that peers open to this rank."""
    outgoing = [(DATA, rank) for rank in plan.remote if rank < plan.me]
    incoming = [(DATA, rank) for rank in plan.remote if rank > plan.me]
    incoming += [(NODE, rank) for rank in plan.local_children] + [(CONTROL, rank) for rank in plan.remote_children]
    if plan.parent >= 0:
        outgoing.append((CONTROL if plan.leads else NODE, plan.parent))
    return [link for link in outgoing if link[0] in kinds], [link for link in incoming if link[0] in kinds]
