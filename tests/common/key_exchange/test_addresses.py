"""Listening addresses of rank 0's store."""

import pytest

from horovod.common.key_exchange import search
from horovod.common.network.interfaces import Address, Interface


def interface(name, *texts, loopback=False):
    return Interface(name, True, loopback, not loopback, 1500, 1000, [Address(text, 24) for text in texts])


@pytest.fixture(autouse=True)
def host(monkeypatch):
    found = [
        interface("lo", "127.0.0.1", loopback=True),
        interface("eth0", "10.0.0.1", "fd00::1"),
        interface("eth1", "192.168.1.1"),
    ]
    monkeypatch.setattr(search.interfaces, "scan", lambda: found)


def test_all_networks_of_ranks():
    assert search.own_addresses() == ["10.0.0.1", "fd00::1", "192.168.1.1", "127.0.0.1"]


def test_interface_chosen_by_the_user():
    assert search.own_addresses("eth1", ["10.0.0.1"]) == ["192.168.1.1"]
    with pytest.raises(ValueError, match=r"HOROVOD_GLOO_IFACE must be .*, got 'eth7'"):
        search.own_addresses("eth7")


def test_the_launchers_address_of_this_host_comes_first():
    assert search.own_addresses("", ["192.168.1.1", "10.9.9.9"])[0] == "192.168.1.1"
    assert search.own_addresses("", ["127.0.1.1"])[-1] == "127.0.1.1", "Debian's address for the host's own name"
