"""Addresses on which a rank listens, and the order in which a peer's addresses are tried. Pure.

It is unknown beforehand which of a host's addresses its peers can reach. So a rank publishes all of them, and a
connecting peer tries them. A wrong address costs only a moment, because the handshake names its target.
"""

import functools
import ipaddress
from collections.abc import Callable, Sequence

import msgspec

from horovod.common.network.interfaces import Interface, describe

MOST = 16  # maximum number of addresses per rank; hosts with more use them for other purposes


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Address of a rank's listener; ``port`` 0: any."""

    interface: str
    address: str
    prefix: int
    port: int = 0

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True if only ranks on the same machine can use it."""
        return ipaddress.ip_address(self.address).is_loopback

    def shares_network(self, other: "Endpoint") -> bool:
        """Return True if both addresses are in the same network, by their prefixes."""
        return not self.loopback and _network(self.address, self.prefix) == _network(other.address, other.prefix)


@functools.lru_cache(maxsize=4096)  # many ranks share few addresses
def _network(address: str, prefix: int) -> "ipaddress.IPv4Network | ipaddress.IPv6Network":
    return ipaddress.ip_interface(f"{address}/{prefix}").network


def to_listen(found: Sequence[Interface], wanted: str, alone: bool) -> list[Endpoint]:
    """Return the addresses to listen on, best first.

    Args:
        found: Interfaces of this host.
        wanted: Value of HOROVOD_GLOO_IFACE: comma-separated interface names, or empty for all that are up.
        alone: True if all ranks are on this machine, so that the loopback is enough.

    Raises:
        ValueError: If ``wanted`` is invalid.
    """
    if wanted:
        chosen = [_named(name, wanted, found) for name in parse_names(wanted)]
        return _endpoints(chosen)[:MOST]
    inside = _endpoints([each for each in found if each.up and each.loopback])[:1]
    if alone:
        return inside
    outside = [each for each in found if each.up and not each.loopback]
    outside.sort(key=lambda each: (not each.physical, -each.speed))
    return _endpoints(outside)[:MOST] + inside


def _named(name: str, wanted: str, found: Sequence[Interface]) -> Interface:
    matching = [each for each in found if each.name == name]
    if not matching:
        trouble = f"there is no interface {name!r} on this host"
    elif not matching[0].up:
        trouble = f"{name} is down"
    elif not matching[0].addresses:
        trouble = f"{name} has no address"
    else:
        return matching[0]
    raise ValueError(f"HOROVOD_GLOO_IFACE must be among {describe(found)}, got {wanted!r}: {trouble}")


def _endpoints(interfaces: Sequence[Interface]) -> list[Endpoint]:
    return [Endpoint(each.name, address.text, address.prefix) for each in interfaces for address in each.addresses]


def to_try(
    mine: Sequence[Endpoint],
    theirs: Sequence[Endpoint],
    same_machine: bool,
    source_address: Callable[[str], str | None],
) -> list[Endpoint]:
    """Return a peer's endpoints in the order in which to try them.

    First come endpoints in one of our networks, then those with a route from one of our addresses, then those with any
    route, then the others.

    Args:
        mine: This host's endpoints, best first.
        theirs: The peer's endpoints.
        same_machine: True if the peer may be reached over the loopback.
        source_address: Returns the local address of the route to an address, or None.
    """
    if same_machine:
        return sorted(theirs, key=lambda each: not each.loopback)
    ours = {each.address for each in mine}
    # An address that this host has too (such as docker0's on every host) leads back to this host, like the loopback.
    outside = [each for each in theirs if not each.loopback and each.address not in ours]

    def order(each: Endpoint) -> tuple[int, int]:
        for index, own in enumerate(mine):
            if own.shares_network(each):
                return (0, index)
        source = source_address(each.address)
        for index, own in enumerate(mine):
            if own.address == source and not own.loopback:
                return (1, index)
        return (3 if source is None else 2, 0)

    return sorted(outside, key=order)


def parse_names(text: str) -> list[str]:
    """Return the interface names in HOROVOD_GLOO_IFACE."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_ports(text: str) -> range:
    """Return the ports that HOROVOD_PORT_RANGE allows; ``range(0, 1)`` for an empty text, which means any port.

    Raises:
        ValueError: If the text is invalid; names the variable, its value and what is accepted.
    """
    if not text:
        return range(1)
    low, dash, high = text.partition("-")
    if dash and low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= 65535:
        return range(int(low), int(high) + 1)
    raise ValueError(
        f"HOROVOD_PORT_RANGE must be LOW-HIGH, two ports from 1 to 65535 such as 40000-40063, got {text!r}"
    )
