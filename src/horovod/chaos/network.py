"""Generate nft(8) and tc(8) input that disconnects a host or slows down a link. Other modules run these tools.

To disconnect a host, the kernel drops all packets on a set of interfaces, in both directions. Each element of the set
has a timeout, after which the kernel removes it. No process could stay alive to remove it, because the agent of a
disconnected host ends all processes that it has started. Interfaces, addresses and routes stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

TABLE = "horovod_chaos"
_DROPS = f"""
add table inet {TABLE}
add set inet {TABLE} down {{ type ifname; flags timeout; }}
add chain inet {TABLE} in {{ type filter hook input priority -300; }}
add chain inet {TABLE} out {{ type filter hook output priority -300; }}
flush chain inet {TABLE} in
flush chain inet {TABLE} out
add rule inet {TABLE} in iifname @down drop
add rule inet {TABLE} out oifname @down drop
"""
_NAME = re.compile(r"[\w.@:-]+", re.ASCII)

_ROOT, _SLOW = "c4a0:", "c4a1:"
# Band of tc's prio queue for delayed packets. The first three bands are the defaults.
_FOURTH = f"{_ROOT}4"
# Maximum number of queued packets. A lower limit would drop packets.
_ROOM = "100000"


def prepare() -> str:
    """Return input for `nft -f -` that creates the rules without applying them to any interface.

    Running nft with this input also tests for missing permissions or tools. It is harmless if repeated.

    Applying it also tests for missing rights or tools, and is harmless if repeated.
    """
    return _DROPS


def cut(interfaces: Iterable[str], lasts: float | None) -> str:
    """Return input for `nft -f -` that makes these interfaces drop all packets.

    Args:
        interfaces: Names of the interfaces.
        lasts: Duration in seconds. None means no limit.

    Raises:
        ValueError: If nft cannot use the name of an interface. The message contains the name.
    """
    until = "" if lasts is None else f" timeout {max(1, round(lasts * 1000))}ms"
    names = list(interfaces)
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of interface {name!r} cannot be given to nft")
    elements = ", ".join(f'"{name}"{until}' for name in names)
    return f"flush set inet {TABLE} down\nadd element inet {TABLE} down {{ {elements} }}\n"


def slow(interface: str, addresses: Sequence[str], by: float) -> list[list[str]]:
    """Return commands that delay outgoing packets of an interface to these addresses by ``by`` seconds.

    Other packets are not delayed. The first command fails if the interface already has a manually configured queueing
    discipline.
    """
    device = ["dev", interface]
    filters = []
    for address in addresses:
        six = ":" in address
        match = ["match", "ip6", "dst", f"{address}/128"] if six else ["match", "ip", "dst", f"{address}/32"]
        which = ["protocol", "ipv6", "prio", "2"] if six else ["protocol", "ip", "prio", "1"]
        filters.append(
            ["tc", "filter", "add", *device, "parent", _ROOT, *which, "u32", *match, "flowid", _FOURTH],
        )
    delay = ["netem", "delay", f"{max(1, round(by * 1e6))}us", "limit", _ROOM]
    return [
        ["tc", "qdisc", "add", *device, "root", "handle", _ROOT, "prio", "bands", "4"],
        ["tc", "qdisc", "add", *device, "parent", _FOURTH, "handle", _SLOW, *delay],
        *filters,
    ]


def slow_no_more(interface: str) -> list[str]:
    """Return the command that undoes `slow`."""
    return ["tc", "qdisc", "del", "dev", interface, "root", "handle", _ROOT]
