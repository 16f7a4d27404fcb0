"""Network interfaces of this host and their addresses, read from the kernel over netlink (rtnetlink(7)).

Not psutil, because only netlink reports which IPv6 addresses are not usable yet or deprecated. Not getaddrinfo of the
host's own name, which often returns 127.0.1.1. Used by launcher and workers.
"""

import ipaddress
import os
import secrets
import socket
import struct
import sys
from collections.abc import Iterator, Sequence

import msgspec

_NETLINK_ROUTE = 0
_LINKS, _ADDRESSES = (18, 16), (22, 20)  # RTM_GETLINK and RTM_NEWLINK, RTM_GETADDR and RTM_NEWADDR
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR: something changed during the dump
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_ATTRIBUTE = struct.Struct("=HH")
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # IFF_*
_NAME, _MTU = 3, 4  # IFLA_*
_PEER_OR_OWN, _OWN, _FLAGS = 1, 2, 8  # IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS
_TEMPORARY, _FAILED, _DEPRECATED, _TENTATIVE = 0x01, 0x08, 0x20, 0x40  # IFA_F_*
_SECONDS = 5.0
_TRIES = 4


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Address that others may connect to, and its network."""

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
    """Network interface. Link-local IPv6 addresses are omitted, because they need the scope of the other side."""

    name: str
    up: bool
    """True if it is enabled and has a carrier."""
    loopback: bool
    physical: bool
    """True for a device, as opposed to a bridge, tunnel or a container's virtual interface."""
    mtu: int
    """In bytes."""
    speed: int
    """In Mbit/s as reported by the driver; 0 if unknown."""
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
    """Return a line that names the interfaces that are up and have addresses, for messages."""
    texts = [f"{each.name} ({', '.join(map(str, each.addresses))})" for each in found if each.up and each.addresses]
    return ", ".join(texts) or "none"


def source_address(target: str) -> str | None:
    """Return the local address from which packets to ``target`` leave by the system's routes; None without a route."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def network_identity() -> str:
    """Return an id that is equal for processes with the same loopback: the same kernel and network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return secrets.token_hex(16)


def machine_identity(shared: bool) -> str:
    """Return an id that is equal for processes that can pass descriptors to each other.

    That requires the same kernel and user, and the same network and user namespaces: abstract Unix sockets belong to
    the network namespace, and credentials have the same meaning only within a user namespace. If ``shared`` is False,
    the id is unique.
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
    except (OSError, ValueError):  # the driver does not know, or the link is down
        return 0


def _all_addresses() -> Iterator[tuple[int, tuple[bool, bool], Address]]:
    """Yield (index of the interface, sort key that puts worse addresses last, address)."""
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
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]  # two bits are flags
        at += (length + 3) & ~3


def _dump(kinds: tuple[int, int], body_size: int) -> list[bytes]:
    """Return the bodies of all messages that answer a dump request. Raises InterruptedError if it must be repeated."""
    asked, wanted = kinds
    bodies: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.bind((0, 0))
        kernel.send(_HEADER.pack(_HEADER.size + body_size, asked, _DUMP, 1, 0) + bytes(body_size))
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
                if kind == wanted:
                    bodies.append(body)
                at += (max(length, _HEADER.size) + 3) & ~3
