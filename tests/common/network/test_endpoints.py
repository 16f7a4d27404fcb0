"""Where ranks listen, the order in which a peer's addresses are tried, and when the next one is tried."""

import socket

import pytest

from horovod.common.network.connecting import BUSY_HEAD_START, HEAD_START, Dialer, Listeners
from horovod.common.network.interfaces import (
    Address,
    Endpoint,
    Interface,
    describe,
    parse_ports,
    scan,
    source_address,
    to_listen,
    to_try,
)


def interface(name, *addresses, up=True, physical=False, speed=0):
    parsed = [Address(text.split("/")[0], int(text.split("/")[1])) for text in addresses]
    return Interface(name, up, name == "lo", physical, 1500, speed, parsed)


LO = interface("lo", "127.0.0.1/8", "::1/128")
SLOW = interface("eth0", "192.168.1.5/24", physical=True, speed=1000)
FAST = interface("eth1", "10.1.0.5/16", "fd00:1::5/64", physical=True, speed=100000)
DOCKER = interface("docker0", "172.17.0.1/16", speed=10000)
DOWN = interface("eth9", "10.9.0.5/24", up=False, physical=True)
BARE = interface("eth8", physical=True)
HOST = [LO, SLOW, FAST, DOCKER, DOWN, BARE]


def names(endpoints):
    return [each.address for each in endpoints]


@pytest.mark.parametrize(
    ("found", "requested", "alone", "expected"),
    [
        (HOST, "", True, ["127.0.0.1"]),
        (HOST, "", False, ["10.1.0.5", "fd00:1::5", "192.168.1.5", "172.17.0.1", "127.0.0.1"]),
        (HOST, "eth0", False, ["192.168.1.5"]),
        (HOST, "eth0", True, ["192.168.1.5"]),
        (HOST, "docker0, eth1", False, ["172.17.0.1", "10.1.0.5", "fd00:1::5"]),
        (HOST, "lo", False, ["127.0.0.1", "::1"]),
        ([LO], "", False, ["127.0.0.1"]),
        ([], "", True, []),
    ],
)
def test_interfaces_that_a_rank_listens_on(found, requested, alone, expected):
    assert names(to_listen(found, requested, alone)) == expected
    assert {each.port for each in to_listen(found, requested, alone)} <= {0}  # any port


@pytest.mark.parametrize(
    ("requested", "trouble"),
    [
        ("eth7", "there is no interface 'eth7' on this host"),
        ("eth0,eth9", "eth9 is down"),
        ("eth8", "eth8 has no address"),
    ],
)
def test_wrong_interfaces_are_named_with_the_existing_ones(requested, trouble):
    with pytest.raises(ValueError) as caught:
        to_listen(HOST, requested, False)
    assert str(caught.value) == (
        "HOROVOD_GLOO_IFACE must be among lo (127.0.0.1/8, ::1/128), eth0 (192.168.1.5/24), eth1 (10.1.0.5/16, "
        f"fd00:1::5/64), docker0 (172.17.0.1/16), got {requested!r}: {trouble}"
    )


def endpoints(*texts):
    result = []
    for text in texts:
        address, prefix = text.split("/")
        result.append(Endpoint("x", address, int(prefix), 1))
    return result


MINE = endpoints("10.1.0.5/16", "fd00:1::5/64", "192.168.1.5/24", "172.17.0.1/16", "127.0.0.1/8")


@pytest.mark.parametrize(
    ("local", "remote", "routes", "expected"),
    [
        # A network of both goes first, in our own order; docker0 leads to ourselves, and so does the
        # loopback.
        (MINE, ["172.17.0.1/16", "192.168.1.6/24", "10.1.0.6/16", "127.0.0.1/8"], {}, ["10.1.0.6", "192.168.1.6"]),
        (MINE, ["10.7.0.6/16", "192.168.1.6/24"], {"10.7.0.6": "10.1.0.5"}, ["192.168.1.6", "10.7.0.6"]),
        # No shared network: prefer the route through our best interface.
        (
            MINE,
            ["192.168.9.6/24", "10.7.0.6/16", "10.8.0.1/16"],
            {"192.168.9.6": "192.168.1.5", "10.7.0.6": "10.1.0.5"},
            ["10.7.0.6", "192.168.9.6", "10.8.0.1"],
        ),
        # A route through one of our interfaces, then one through an interface we do not listen on, then no
        # route.
        (
            MINE,
            ["10.7.0.6/16", "10.8.0.6/16", "10.9.0.6/16"],
            {"10.8.0.6": "203.0.113.7", "10.9.0.6": "172.17.0.1"},
            ["10.9.0.6", "10.8.0.6", "10.7.0.6"],
        ),
        (MINE, ["10.8.0.6/16", "fd00:1::6/64"], {}, ["fd00:1::6", "10.8.0.6"]),  # only IPv6 in common
        (MINE, ["127.0.0.1/8"], {}, []),  # the peer listens on its loopback only
        ([], ["10.1.0.6/16"], {}, ["10.1.0.6"]),
    ],
)
def test_the_order_of_a_peers_addresses(local, remote, routes, expected):
    assert names(to_try(local, endpoints(*remote), False, routes.get)) == expected


def test_two_hosts_on_one_machine_use_the_loopback_first():
    remote = endpoints("10.1.0.5/16", "127.0.0.1/8")
    assert names(to_try(MINE, remote, True, lambda _: None)) == ["127.0.0.1", "10.1.0.5"]


def test_port_ranges():
    assert parse_ports("") == range(1)
    assert parse_ports("40000-40063") == range(40000, 40064)
    assert parse_ports("7-7") == range(7, 8)
    assert parse_ports("1-65535") == range(1, 65536)
    for text in ("1", "5-4", "0-9", "1-65536", "a-b", "1-2-3", "-5", "1-", "²-3"):
        with pytest.raises(ValueError, match="HOROVOD_PORT_RANGE must be LOW-HIGH"):
            parse_ports(text)


def test_listeners_take_the_ports_that_are_free():
    place = [Endpoint("lo", "127.0.0.1", 8)]
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(ValueError, match=f"no port from {port} to {port} \\(HOROVOD_PORT_RANGE\\) is free"):
            Listeners(place, 1, range(port, port + 1))
        both = Listeners([*place, Endpoint("eth7", "203.0.113.1", 24)], 1)  # the second is not ours: left out
        assert both.endpoints == [Endpoint("lo", "127.0.0.1", 8, both.tcp[0].getsockname()[1])]
        both.close()
    again = Listeners(place, 1, range(port, port + 1))
    assert again.endpoints[0].port == port
    with pytest.raises(ValueError, match=r"is free"):
        Listeners(place, 1, range(port, port + 1))
    again.close()


def test_this_hosts_interfaces():
    found = scan()
    (loopback,) = [each for each in found if each.loopback]
    assert Address("127.0.0.1", 8) in loopback.addresses
    assert loopback.mtu > 1000
    assert [each.name for each in found] == [name for _, name in socket.if_nameindex()]
    assert "127.0.0.1/8" in describe(found)
    for each in found:
        for address in each.addresses:  # it is possible to listen on all of them
            family = socket.AF_INET6 if ":" in address.text else socket.AF_INET
            with socket.socket(family) as sock:
                sock.bind((address.text, 0))
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert source_address("255.255.255.255") is None  # rejected by the system, as without a route


def test_addresses_are_tried_in_turn_until_one_answers():
    dialer = Dialer(["a", "b", "c", "d"], 100.0)
    assert dialer.due(100.0) == ["a"]
    assert dialer.next_due() == 100 + HEAD_START
    assert dialer.due(100 + HEAD_START) == ["b"]
    assert dialer.due(100 + HEAD_START) == []
    dialer.failed("b", "refused", 100.3)  # the next one is tried at once, and no other
    assert dialer.due(100.3) == ["c"]
    assert dialer.outcomes() == [("a", "no answer"), ("b", "refused"), ("c", "no answer"), ("d", "not tried")]


def test_deadline_of_a_peer():
    dialer = Dialer(["a"], 0.0)
    dialer.due(0.0)
    assert not dialer.hopeless(7.9, 8.0)
    assert dialer.hopeless(8.0, 8.0)  # no host has accepted the connection
    dialer.connected("a", 8.0)
    assert not dialer.hopeless(20.0, 8.0)  # a host accepted it and may still answer
    dialer.failed("a", "connected, but no answer", 20.0, silent=True)
    assert not dialer.hopeless(22.0, 8.0)
    assert dialer.hopeless(23.1, 8.0)
    dialer.connected("a", 24.0)
    dialer.failed("a", "another program answered", 24.0)
    assert dialer.hopeless(24.0, 8.0)
    assert Dialer([], 0.0).hopeless(9.0, 8.0)
    assert not Dialer([], 0.0).hopeless(7.0, 8.0)  # the peer may connect to us


def test_pauses_between_retries_grow():
    dialer, now, times = Dialer(["a"], 0.0), 0.0, []
    for _ in range(7):
        assert dialer.due(now) == ["a"]
        dialer.failed("a", "refused", now)
        times.append(dialer.next_due() - now)
        now = dialer.next_due()
    assert times == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1])


def test_a_busy_peer_gets_more_time():
    dialer = Dialer(["a", "b"], 0.0)
    dialer.due(0.0)
    dialer.connected("a", 0.1)
    assert (dialer.due(1.0), dialer.due(0.1 + BUSY_HEAD_START)) == ([], ["b"])
