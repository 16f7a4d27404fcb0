"""Ranks on hosts connect over any usable network, and explain clearly if they cannot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.ranks import Rank, ranks
from tests.testbed.cluster import Cluster


def networks_in_use(reports: Sequence[dict[str, Any]]) -> set[str]:
    """Return the networks of all connections: the first three numbers, or the first group, of their addresses."""
    peers = [peer for facts in reports for _, peer in facts["connections"]]
    return {peer.split(":")[0] if ":" in peer else peer.rpartition(".")[0] for peer in peers}


def formed(started: Sequence[Rank]) -> list[dict[str, Any]]:
    """Return the ranks' reports once in the job; assert that no rank still listens and that data gets through."""
    reports = [rank.receive() for rank in started]
    assert not [facts["error"] for facts in reports if "error" in facts]
    assert [facts["listening"] for facts in reports] == [0] * len(started)
    assert [rank.receive() for rank in started] == [{"gathered": list(range(len(started)))}] * len(started)
    return reports


def first_error(started: Sequence[Rank]) -> tuple[str, float]:
    """Return the ranks' common error and the longest time, in seconds, that it took; assert that errors are equal."""
    reports = [rank.receive() for rank in started]
    assert {facts.get("error") for facts in reports} == {reports[0].get("error")}
    assert [facts["listening"] for facts in reports] == [0] * len(started)
    return reports[0]["error"], max(facts["seconds"] for facts in reports)


def test_unequal_hosts_in_any_order(cluster: Cluster) -> None:
    with ranks(cluster, [1, 2, 1, 1]) as started:
        reports = formed(started)
    assert networks_in_use(reports) == {"10.77.0"}
    assert {peer for _, peer in reports[1]["connections"]} == {"10.77.0.1"}
    assert len(reports[1]["connections"]) == 4  # control, and data with each of three ranks


def test_two_names_of_one_machine_use_its_loopback(cluster: Cluster) -> None:
    with ranks(cluster, [1, 1, 2], names=["localhost", "127.0.0.1", "host2"]) as started:
        reports = formed(started)
    assert {peer for _, peer in reports[0]["connections"]} == {"127.0.0.1", "10.77.0.2"}
    assert "127.0.0.1" not in {peer for _, peer in reports[2]["connections"]}


def test_addresses_shared_by_all_hosts_are_not_used(cluster: Cluster) -> None:
    """A bridge with the same address on both hosts, as Docker creates it, and a network that only one host has."""
    for number in (1, 2):
        cluster.host(number).run("ip link add docker0 type dummy; ip link set docker0 up")
        cluster.host(number).run("ip addr add 172.17.0.1/16 dev docker0")
    cluster.add_network(1, 3)
    try:
        with ranks(cluster, [1, 2]) as started:
            reports = formed(started)
    finally:
        for number in (1, 2):
            cluster.host(number).run("ip link del docker0")
    assert networks_in_use(reports) == {"10.77.0"}


def test_a_dead_network_is_not_used(cluster: Cluster) -> None:
    """Both hosts are on the network and its links are up, but no packets get through."""
    cluster.add_network(1, 2)
    cluster.partition(2)  # cuts eth0 of host2; the desk with the store is on that network, so ranks use another
    desk = cluster.add_network(1, 2, 254)
    with ranks(cluster, [1, 2], store=desk[254]) as started:
        assert networks_in_use(formed(started)) == {"10.78.1"}


def test_requested_interface(cluster: Cluster) -> None:
    cluster.add_network(1, 2)
    with ranks(cluster, [1, 2], env={"HOROVOD_GLOO_IFACE": "eth1"}) as started:
        assert networks_in_use(formed(started)) == {"10.78.1"}
    with ranks(cluster, [1, 3], env={"HOROVOD_GLOO_IFACE": "eth1", "HOROVOD_START_TIMEOUT": "3"}) as started:
        text = started[1].receive()["error"]
    assert "HOROVOD_GLOO_IFACE must be among lo (" in text
    assert "got 'eth1': there is no interface 'eth1' on this host" in text
    assert "eth0 (10.77.0.3/24, fd77::3/64)" in text


def test_hosts_with_only_ipv6_in_common(cluster: Cluster) -> None:
    hosts = [cluster.host(number) for number in (1, 2)]
    for host in hosts:
        host.run(f"ip addr del {host.address}/24 dev eth0")
    try:
        with ranks(cluster, [1, 2, 2], store=cluster.desk.address6) as started:
            assert networks_in_use(formed(started)) == {"fd77"}
    finally:
        for host in hosts:
            host.run(f"ip addr add {host.address}/24 dev eth0")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_firewall_in_one_direction(cluster: Cluster, closed: int) -> None:
    """Whichever host blocks incoming connections, the other accepts one, encrypted or not."""
    cluster.firewall(closed)
    with ranks(cluster, [1, 2, 3], env={"HOROVOD_ENCRYPT_DATA": str(closed - 1)}) as started:
        formed(started)


def test_a_firewall_with_an_open_port_range(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.firewall(number, allowed=(22, *range(41000, 41002)))
    with ranks(cluster, [1, 1, 2, 2], env={"HOROVOD_PORT_RANGE": "41000-41001"}) as started:
        formed(started)


def test_firewalls_in_both_directions_are_named(cluster: Cluster) -> None:
    cluster.firewall(1)
    cluster.firewall(2, refuse=True)
    with ranks(cluster, [1, 2, 3], env={"HOROVOD_START_TIMEOUT": "110"}) as started:
        text, seconds = first_error(started)
    assert re.match(
        r"init: rank 1 \(host host2, pid \d+\) could not join: no (data|control) connection to rank 0 "
        r"\(host host1, pid \d+\) at 10\.77\.0\.1:\d+ \(eth0\): no answer; "
        r"\[fd77::1\]:\d+ \(eth0\): no answer; and none came from there\. Is there a firewall\?",
        text,
    ), text
    assert seconds < 100  # well before the start timeout; takes 6 on an idle machine


@pytest.mark.parametrize("what", ["idle", "busy"])
def test_a_vanished_host_is_named_on_the_others(cluster: Cluster, what: str) -> None:
    """No connection reports its end: the kernel's probes detect it after about HOROVOD_HEARTBEAT_TIMEOUT seconds."""
    with ranks(cluster, [1, 2, 3], what, env={"HOROVOD_HEARTBEAT_TIMEOUT": "4"}) as started:
        assert all("connections" in rank.receive() for rank in started)
        assert started[0].is_silent(1)
        cluster.partition(2)
        if what == "idle":
            assert started[0].receive() == started[2].receive() == {"noticed": True}
        for rank in (started[0], started[2]):
            assert re.match(r"rank 1 \(host host2, pid \d+\) was lost: ", rank.receive()["lost"])
