"""Nodes and their names. Pure."""

import pytest

pytest.importorskip("ray")

from horovod.ray import cluster
from horovod.ray.cluster import HostNames


def node(number, address="10.0.0.1", host="a", cpus=2.0, alive=True, gpus=0.0):
    return {
        "NodeID": number * 28,
        "NodeManagerAddress": address,
        "NodeManagerHostname": host,
        "NodeName": address,
        "Alive": alive,
        "Resources": {"CPU": cpus, "GPU": gpus},
    }


def test_slots_of_live_nodes_with_capacity():
    nodes = [node("1"), node("2", "10.0.0.2", "b", 5.0), node("3", "10.0.0.3", "c", 1.0), node("4", alive=False)]
    assert cluster.slots(nodes, HostNames(), 2, 0) == {"10.0.0.1": 1, "10.0.0.2": 2}


def test_slots_by_gpus():
    assert cluster.slots([node("1", cpus=8.0, gpus=3.0), node("2", "10.0.0.2")], HostNames(), 1, 1) == {"10.0.0.1": 3}


def test_nodes_with_one_address_are_distinguished_by_name():
    names = HostNames()
    both = cluster.slots([node("1"), node("2")], names, 1, 0)
    assert list(both) == ["10.0.0.1", "10.0.0.1-22222222"]
    assert list(cluster.slots([node("1", alive=False), node("2"), node("3")], names, 1, 0)) == [
        "10.0.0.1-22222222",
        "10.0.0.1-33333333",
    ]
    assert names.node("10.0.0.1-22222222") == "2" * 28
    assert names.node("10.0.0.9") is None


def test_nodes_of_one_host_are_one_machine():
    names = HostNames()
    found = cluster.slots([node("1"), node("2"), node("3", "10.0.0.3", "a")], names, 1, 0)
    assert [names.machine(name) for name in found] == ["a", "a", "a#2"]


def test_missing_interfaces_are_named():
    with pytest.raises(ValueError, match=r"nics must name an interface of each host, got nothing9; this host has .*lo"):
        cluster.address(["nothing9"])


def test_the_address_of_an_interface():
    assert cluster.address(["lo"]) == "127.0.0.1"


def test_settings_are_passed_to_workers_without_rank_variables(monkeypatch):
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1024")
    monkeypatch.setenv("HOROVOD_RANK", "3")
    monkeypatch.setenv("HOROVOD_JOB_KEY", "ab" * 32)
    found = cluster.variables(["eth0", "eth1"])
    assert found["HOROVOD_FUSION_THRESHOLD"] == "1024"
    assert found["HOROVOD_GLOO_IFACE"] == found["NCCL_SOCKET_IFNAME"] == "eth0,eth1"
    assert "NCCL_SOCKET_IFNAME" not in cluster.variables([])
    assert "HOROVOD_RANK" not in found
    assert "HOROVOD_JOB_KEY" not in found
