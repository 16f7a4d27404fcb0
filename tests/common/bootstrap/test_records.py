"""How records reach every rank: the store's replies, and what leaders pass on; ranks are threads."""

import os
import socket
import time

import msgspec
import pytest

from horovod._version import __version__
from horovod.common.bootstrap.errors import LinkError
from horovod.common.bootstrap.peers import NODE, Peer
from horovod.common.bootstrap.records import _send, spread
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import Endpoint
from horovod.common.store.client import ExchangeResult
from horovod.common.store.messages import Exchange, pack, unpack
from horovod.common.store.table import Table
from tests.common.bootstrap.meshes import KEY, LOOPBACK, make_peer
from tests.common.threads import run_ranks


def records(hosts, unix_names, versions=None):
    """Return one record for each character of `hosts`, about as large as real ones."""
    result = []
    for rank, host in enumerate(hosts):
        endpoints = [Endpoint(f"eth{i}", f"10.0.{i}.{rank % 256}", 24, 40000 + rank) for i in range(16)]
        names = f"host-{host}.example.org", f"machine {host}"
        version = versions[rank] if versions else __version__
        result.append(make_peer(rank, *names, endpoints=endpoints, unix_name=unix_names[rank], version=version))
    return [msgspec.msgpack.encode(peer) for peer in result]


def exchange(hosts, sent):
    """Return the store's replies by rank."""
    table = Table()
    replies = {}
    for rank, host in reversed(list(enumerate(hosts))):  # in any order
        request = Exchange(rank, "init", rank, len(hosts), sent[rank], 5.0, host)
        replies.update(table.handle(b"%d" % rank, request, 0.0))
    return [replies[b"%d" % rank] for rank in range(len(hosts))]


def total(replies):
    return sum(len(msgspec.msgpack.encode(reply)) for reply in replies)


@pytest.mark.parametrize("data", [b"", b"nonsense", pack([b"x" * 100])[:-1], b"\x78\x9c"])
def test_invalid_packed_values(data):
    with pytest.raises(ValueError, match="packed values"):
        unpack(data)


def run_all(hosts, seconds=30.0, absent=(), versions=None, check=lambda rank: None):
    """Return what `spread` returns or raises on each rank."""
    listeners = [Listeners(LOOPBACK, 32) for _ in hosts]
    sent = records(hosts, [each.unix_name for each in listeners], versions)
    replies = exchange(hosts, sent)

    def run(rank):
        reply = replies[rank]
        met = ExchangeResult(reply.round, unpack(reply.packed) if reply.holder == rank else reply.values, reply.holder)
        own = msgspec.msgpack.decode(sent[rank], type=Peer)
        return spread(met, rank, own, KEY, listeners[rank], seconds, lambda: check(rank))

    results = run_ranks(len(hosts), run, absent)
    for each in listeners:
        each.close()
    return sent, results


@pytest.mark.parametrize("hosts", ["a", "aa", "ab", "aabb", "abcabc", "a" * 24])
def test_leaders_forward_the_records(hosts):
    before = len(os.listdir("/proc/self/fd"))
    result, results = run_all(hosts)
    for rank, (values, links) in enumerate(results):
        assert values == result
        leader = hosts.index(hosts[rank])
        locals_ = [other for other, host in enumerate(hosts) if host == hosts[rank] and other != leader]
        assert set(links) == {(NODE, other) for other in (locals_ if rank == leader else [leader])}
        for sock in links.values():
            sock.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_leader_waits_for_a_stalled_rank_until_deadline_or_failure():
    local, peer = socket.socketpair()
    checks = []

    def check():
        checks.append(1)
        if len(checks) > 1:
            raise LinkError("rank 3 could not join: its reason")

    with local, peer:
        with pytest.raises(LinkError, match="rank 3 could not join"):
            _send(local, b"x" * (8 << 20), "rank 1", time.monotonic() + 120, check)
        with pytest.raises(LinkError, match="timed out waiting for rank 1 to take the records of all ranks"):
            _send(local, b"x", "rank 1", time.monotonic(), lambda: pytest.fail("the deadline is over"))


def test_waiting_ranks_get_failures_of_others():
    def check(rank):
        if rank == 1:
            raise LinkError("rank 3 could not join: its reason")

    _, results = run_all("aab", seconds=60, absent=[0], check=check)
    assert str(results[1]) == "rank 3 could not join: its reason"


def test_a_leader_of_another_version_is_named():
    _, results = run_all("aba", seconds=2, versions=["0.0.1", __version__, __version__])
    for result in results:
        assert isinstance(result, ValueError)
        assert "rank 0 (host host-a.example.org) runs horovod 0.0.1" in str(result)
