"""Network interfaces of this host, its listening addresses, and the order in which to try a peer's addresses.

The interfaces come from the kernel over netlink (rtnetlink(7)). psutil is not sufficient, because only netlink reports
which IPv6 addresses are deprecated or not usable yet. Resolving the host's own name is not sufficient either, because
it often returns 127.0.1.1. Both launcher and workers use this module.

A rank cannot know which of its host's addresses its peers can reach. So it publishes all of them, and a connecting peer
tries them. A connection to a wrong host fails immediately, because the handshake contains the target.
"""

import functools
import ipaddress
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

_NETLINK_ROUTE = 0
# Types of netlink messages: RTM_GETLINK, RTM_NEWLINK, RTM_GETADDR and RTM_NEWADDR.
_LINKS, _ADDRESSES = (18, 16), (22, 20)
# Flags of a netlink request: NLM_F_REQUEST and NLM_F_DUMP.
_DUMP = 0x301
# Flag NLM_F_DUMP_INTR: the interfaces changed during the dump.
_INTERRUPTED = 0x10
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
# Fields of a netlink message about an interface (link): family, type, index, flags, change.
_LINK = struct.Struct("=BxHiII")
# Fields of a netlink message about an address: family, prefix length, flags, scope, index.
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
# Interface flags (IFF_*).
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
# Attributes of interfaces (IFLA_*).
_NAME, _MTU = 3, 4
# Attributes of addresses (IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS).
_PEER_OR_OWN, _OWN, _FLAGS = 1, 2, 8
# Flags of addresses (IFA_F_*).
_TEMPORARY, _FAILED, _DEPRECATED, _TENTATIVE = 0x01, 0x08, 0x20, 0x40
_SECONDS = 5.0
_TRIES = 4


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Interface address with its network prefix."""

    text: str
    prefix: int
    """Length of the network prefix in bits."""

    def __str__(self) -> str:
        return f"{self.text}/{self.prefix}"

    @property
    def network(self) -> "ipaddress.IPv4Network | ipaddress.IPv6Network":
        """Network that contains the address."""
        return ipaddress.ip_interface(str(self)).network


class Interface(msgspec.Struct, frozen=True, array_like=True):
    """Network interface of this host.

    Link-local IPv6 addresses are omitted, because connecting to them requires the connecting host's scope id.
    """

    name: str
    up: bool
    """True if the interface is enabled and has a carrier."""
    loopback: bool
    physical: bool
    """True for a device. False for a bridge, a tunnel or a container's virtual interface."""
    mtu: int
    """Maximum transmission unit in bytes."""
    speed: int
    """Speed in Mbit/s as reported by the driver, or 0 if unknown."""
    addresses: list[Address]


def scan() -> list[Interface]:
    """Return all interfaces of this process's network namespace, in the kernel's order.

    Raises:
        OSError: If the kernel does not answer.
    """
    for _ in range(_TRIES):
        try:
            found = dict(_interface(body) for body in _dump(_LINKS, _LINK.size))
            addresses = sorted(_all_addresses(), key=lambda entry: entry[1])
            break
        except InterruptedError:
            continue
    else:
        raise OSError("the list of network interfaces changes all the time")
    for index, _, address in addresses:
        if index in found:
            found[index].addresses.append(address)
    return list(found.values())


def describe(found: Sequence[Interface]) -> str:
    """List the active interfaces with their addresses as text, for messages."""
    texts = [f"{each.name} ({', '.join(map(str, each.addresses))})" for each in found if each.up and each.addresses]
    return ", ".join(texts) or "none"


def source_address(target: str) -> str | None:
    """Return the local source address for packets to ``target``, or None if there is no route."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # for a UDP socket, connect() selects a route without sending a packet
            return str(probe.getsockname()[0])
    except OSError:
        return None


def network_identity() -> str:
    """Return an id for the kernel and network namespace. Processes with equal ids share the loopback interface."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return secrets.token_hex(16)


def machine_identity(shared: bool) -> str:
    """Return an id that is equal for processes that can pass file descriptors to each other.

    These processes must have the same kernel, user, network namespace and user namespace. Abstract Unix sockets belong
    to the network namespace, and user ids are comparable only within a user namespace. If ``shared`` is False, every
    process gets a unique id.
    """
    try:
        parts = [network_identity(), str(os.getuid()), os.readlink("/proc/self/ns/user")]
    except OSError:
        shared = False
    return "/".join(parts) if shared else secrets.token_hex(16)


def _interface(body: bytes) -> tuple[int, Interface]:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    attributes = dict(_attributes(body[_LINK.size :]))
    name = os.fsdecode(attributes.get(_NAME, b"").rstrip(b"\0"))
    mtu = int.from_bytes(attributes.get(_MTU, b"\0\0\0\0"), sys.byteorder)
    up = flags & (_UP | _RUNNING) == _UP | _RUNNING
    physical = os.path.exists(f"/sys/class/net/{name}/device")
    return index, Interface(name, up, bool(flags & _LOOPBACK), physical, mtu, _speed(name), [])


def _speed(name: str) -> int:
    try:
        with open(f"/sys/class/net/{name}/speed") as file:
            return max(0, int(file.read()))
    # sysfs does not provide the speed if the driver does not report it or the link is down
    except (OSError, ValueError):
        return 0


def _all_addresses() -> Iterator[tuple[int, tuple[bool, bool], Address]]:
    """Yield (index of the interface, sort key, address). Less suitable addresses have larger sort keys."""
    for body in _dump(_ADDRESSES, _ADDRESS.size):
        family, prefix, flags, _, index = _ADDRESS.unpack_from(body)
        attributes = dict(_attributes(body[_ADDRESS.size :]))
        packed = attributes.get(_OWN) or attributes.get(_PEER_OR_OWN)
        if family not in (socket.AF_INET, socket.AF_INET6) or packed is None:
            continue
        if _FLAGS in attributes:
            (flags,) = struct.unpack("=I", attributes[_FLAGS])
        address = ipaddress.ip_address(packed)
        six = address.version == 6
        if six and (address.is_link_local or flags & (_FAILED | _DEPRECATED | _TENTATIVE)):
            continue
        last = address.is_link_local or (six and bool(flags & _TEMPORARY))
        yield index, (last, six), Address(str(address), prefix)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        # The upper two bits of an attribute's type are flags.
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _dump(kinds: tuple[int, int], body_size: int) -> list[bytes]:
    """Return the message bodies in the kernel's netlink dump. Raises InterruptedError if the dump must be repeated."""
    request_kind, reply_kind = kinds
    bodies: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.bind((0, 0))
        kernel.send(_HEADER.pack(_HEADER.size + body_size, request_kind, _DUMP, 1, 0) + bytes(body_size))
        while True:
            data = kernel.recv(1 << 18)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
                body = data[at + _HEADER.size : at + length]
                if flags & _INTERRUPTED:
                    raise InterruptedError
                if kind == _DONE:
                    return bodies
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, f"the network interfaces cannot be listed: {os.strerror(code)}")
                if kind == reply_kind:
                    bodies.append(body)
                at += (max(length, _HEADER.size) + 3) & ~3


MAX_ADDRESSES = 16  # maximum number of addresses that a rank publishes


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Address and port on which a rank listens. Port 0 means any port."""

    interface: str
    address: str
    prefix: int
    port: int = 0

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True if only ranks on the same machine can connect to the address."""
        return ipaddress.ip_address(self.address).is_loopback

    def shares_network(self, other: "Endpoint") -> bool:
        """Return True if both addresses are in the same network according to their prefixes."""
        return not self.loopback and _network(self.address, self.prefix) == _network(other.address, other.prefix)


@functools.lru_cache(maxsize=4096)  # cached, because many ranks share a few addresses
def _network(address: str, prefix: int) -> "ipaddress.IPv4Network | ipaddress.IPv6Network":
    return ipaddress.ip_interface(f"{address}/{prefix}").network


def to_listen(interfaces: Sequence[Interface], requested: str, alone: bool) -> list[Endpoint]:
    """Return the addresses on which a rank should listen, best first.

    Args:
        interfaces: Interfaces of this host.
        requested: Value of HOROVOD_GLOO_IFACE: comma-separated interface names, or empty for all active interfaces.
        alone: True if all ranks are on this machine, so the loopback interface is sufficient.

    Raises:
        ValueError: If ``requested`` is invalid.
    """
    if requested:
        chosen = [_by_name(name, requested, interfaces) for name in parse_names(requested)]
        return _endpoints(chosen)[:MAX_ADDRESSES]
    inside = _endpoints([each for each in interfaces if each.up and each.loopback])[:1]
    if alone:
        return inside
    outside = [each for each in interfaces if each.up and not each.loopback]
    outside.sort(key=lambda each: (not each.physical, -each.speed))
    return _endpoints(outside)[:MAX_ADDRESSES] + inside


def _by_name(name: str, requested: str, interfaces: Sequence[Interface]) -> Interface:
    matching = [each for each in interfaces if each.name == name]
    if not matching:
        trouble = f"there is no interface {name!r} on this host"
    elif not matching[0].up:
        trouble = f"{name} is down"
    elif not matching[0].addresses:
        trouble = f"{name} has no address"
    else:
        return matching[0]
    raise ValueError(f"HOROVOD_GLOO_IFACE must be among {describe(interfaces)}, got {requested!r}: {trouble}")


def _endpoints(interfaces: Sequence[Interface]) -> list[Endpoint]:
    return [Endpoint(each.name, address.text, address.prefix) for each in interfaces for address in each.addresses]


def to_try(
    mine: Sequence[Endpoint],
    theirs: Sequence[Endpoint],
    same_machine: bool,
    source_address: Callable[[str], str | None],
) -> list[Endpoint]:
    """Return a peer's endpoints in the order in which to try them.

    The order is: endpoints in one of this host's networks, endpoints with a route from one of this host's endpoints,
    endpoints with any route, all others.

    Args:
        mine: This host's endpoints, best first.
        theirs: The peer's endpoints.
        same_machine: True if the loopback interface can reach the peer.
        source_address: Function that returns the local address of the route to an address, or None.
    """
    if same_machine:
        return sorted(theirs, key=lambda each: not each.loopback)
    ours = {each.address for each in mine}
    # Skip addresses that this host also has, such as docker0's, because they would lead back to this host.
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
    """Split HOROVOD_GLOO_IFACE into interface names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_ports(text: str) -> range:
    """Return the ports that HOROVOD_PORT_RANGE allows. If it is empty, return ``range(0, 1)``, which means any port.

    Raises:
        ValueError: If the text is invalid. The message names the variable, its value and the accepted values.
    """
    if not text:
        return range(1)
    low, dash, high = text.partition("-")
    if dash and low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= 65535:
        return range(int(low), int(high) + 1)
    raise ValueError(
        f"HOROVOD_PORT_RANGE must be LOW-HIGH, two ports from 1 to 65535 such as 40000-40063, got {text!r}"
    )
