"""What is said to nft(8) and tc(8) to cut a host off, or to make a link slow. Pure: nothing is run here.

A host is cut off by a set of interfaces all of whose packets the kernel drops, in both directions. An element of such a
set ends by itself after its time: no process has to live for that, and none could, since the agent of a host that is
cut off ends all that it has started. Interfaces, addresses and routes stay as they are.
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
_FOURTH = f"{_ROOT}4"  # beside the three bands that packets take by themselves
_ROOM = "100000"  # packets that are under way; with fewer it would lose some


def prepare() -> str:
    """For `nft -f -`: all but the interfaces, so that whoever may not, or cannot, learns it here. May be repeated."""
    return _DROPS


def cut(interfaces: Iterable[str], lasts: float | None) -> str:
    """For `nft -f -`: these interfaces carry nothing any more, for so many s, None: until `heal`. Raises ValueError
    naming an interface that cannot be written there."""
    until = "" if lasts is None else f" timeout {max(1, round(lasts * 1000))}ms"
    names = list(interfaces)
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of interface {name!r} cannot be given to nft")
    elements = ", ".join(f'"{name}"{until}' for name in names)
    return f"flush set inet {TABLE} down\nadd element inet {TABLE} down {{ {elements} }}\n"


def slow(interface: str, addresses: Sequence[str], by: float) -> list[list[str]]:
    """Command lines by which packets that leave by this interface towards these addresses leave later by so many s,
    and all others as before. The first fails where somebody has given the interface a discipline of its own."""
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
    """The command line that undoes all of `slow`."""
    return ["tc", "qdisc", "del", "dev", interface, "root", "handle", _ROOT]
