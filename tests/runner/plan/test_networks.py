"""The network that the hosts of a job share."""

from horovod.common.network.interfaces import Address, Interface
from horovod.runner.plan.hosts import common_addresses, common_interfaces


def interface(name, *addresses, speed=1000, physical=True, up=True, loopback=False):
    parsed = [Address(text, int(prefix)) for text, prefix in (address.split("/") for address in addresses)]
    return Interface(name, up, loopback, physical, 1500, speed, parsed)


LO = interface("lo", "127.0.0.1/8", loopback=True)
DOCKER = interface("docker0", "172.17.0.1/16", physical=False)


def test_shared_networks_are_found_with_any_interface_names():
    hosts = {
        "a": [LO, DOCKER, interface("eth0", "10.0.0.1/24"), interface("wlan0", "192.168.1.5/24")],
        "b": [LO, DOCKER, interface("ens3", "10.0.0.2/24")],
    }
    assert common_interfaces(hosts) == {"a": "eth0", "b": "ens3"}
    assert common_addresses(hosts) == {"a": "10.0.0.1", "b": "10.0.0.2"}


def test_the_faster_network_wins_and_devices_come_before_bridges():
    hosts = {
        name: [
            interface("br0", f"10.1.0.{i}/24", speed=100000, physical=False),
            interface("eth0", f"10.0.0.{i}/24", speed=1000),
            interface("ib0", f"10.2.0.{i}/24", speed=40000),
        ]
        for i, name in enumerate("ab", 1)
    }
    assert common_interfaces(hosts) == {"a": "ib0", "b": "ib0"}


def test_no_shared_networks():
    hosts = {"a": [LO, DOCKER, interface("eth0", "10.0.0.1/24")], "b": [LO, DOCKER, interface("eth0", "10.0.1.1/24")]}
    assert common_interfaces(hosts) == {}
    assert common_interfaces({}) == {}
    down = {"a": [interface("eth0", "10.0.0.1/24", up=False)], "b": [interface("eth0", "10.0.0.2/24")]}
    assert common_interfaces(down) == {}
