"""Meshes of links between ranks that are threads."""

from horovod._version import __version__
from horovod.common.bootstrap.mesh import MeshBuilder
from horovod.common.bootstrap.peers import CONTROL, DATA, NODE, Peer, make_plan
from horovod.common.communicators import SetSpec
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import Endpoint
from tests.common.threads import run_ranks

KEY = b"k" * 32
LOOPBACK = [Endpoint("lo", "127.0.0.1", 8)]


def make_peer(
    rank, hostname="a", machine="m", *, endpoints=(), unix_name="u", version=__version__, dynamic=False, sets=()
):
    """Return the record of a rank."""
    own = [list(endpoints), unix_name]
    return Peer(version, rank, hostname, machine, 100 + rank, "n", *own, [0], {}, dynamic, [*map(SetSpec, sets)], [])


def make_peers(hosts, listeners, publish=lambda _, own: own):
    """Return the ranks' records. `publish`: maps a rank and its listening addresses to those in its record."""
    return [
        make_peer(rank, host, host, endpoints=publish(rank, here.endpoints), unix_name=here.unix_name)
        for rank, (host, here) in enumerate(zip(hosts, listeners, strict=True))
    ]


def addresses_of(listeners):
    return listeners.endpoints[0].address, listeners.endpoints[0].port


def form(hosts, seconds=30.0, keys=None, absent=(), before=None, publish=lambda _, own: own):
    """Build the mesh of every rank in a thread; return (plans, results); a result is the links or an exception."""
    listeners = [Listeners(LOOPBACK, 4 * len(hosts) + 64) for _ in hosts]
    peers = make_peers(hosts, listeners, publish)
    plans = [make_plan(rank, peers) for rank in range(len(hosts))]
    if before:
        before(listeners)

    def run(rank):
        key = keys[rank] if keys else KEY
        return MeshBuilder(plans[rank], peers, key, 7, listeners[rank]).run(seconds, lambda: None)

    results = run_ranks(len(hosts), run, absent)
    for listener in listeners:
        listener.close()
    return plans, results


def close_all(results):
    for links in results:
        if isinstance(links, dict):
            for sock in links.values():
                sock.close()


def check_complete(plans, results):
    """Check that every link leads to the right rank: each side sends its own rank and reads the other's."""
    for rank, links in enumerate(results):
        assert isinstance(links, dict), links
        plan = plans[rank]
        expected = {(DATA, other) for other in plan.remote}
        expected |= {(NODE, other) for other in plan.local_children} | {
            (CONTROL, other) for other in plan.remote_children
        }
        if plan.parent >= 0:
            expected.add((CONTROL if plan.leads else NODE, plan.parent))
        assert set(links) == expected
        for sock in links.values():
            sock.sendall(bytes([rank]))
    for links in results:
        for (_, other), sock in links.items():
            sock.settimeout(30)
            assert sock.recv(10) == bytes([other])
    close_all(results)
