"""Addresses of this host that others may reach, and of hosts that a launcher names."""

import ipaddress
import re
import shutil
import subprocess
from collections.abc import Sequence

from horovod.common import interfaces
from horovod.common.launchers import search

_SECONDS = 5.0


def own_addresses(interface: str = "", named: Sequence[str] = ()) -> list[str]:
    """Addresses to listen on, the likely ones first.

    Those of ``interface`` (HOROVOD_GLOO_IFACE), else of all interfaces but loopback, for a host may be reached by
    several networks; those in ``named`` first. Loopback addresses only when they are named, or when the host has no
    others.

    Raises ValueError naming HOROVOD_GLOO_IFACE when there is no such interface, or it has no address.
    """
    found = interfaces.scan()
    if interface:
        mine = [address.text for each in found if each.name == interface for address in each.addresses]
        if not mine:
            raise ValueError(f"HOROVOD_GLOO_IFACE is {interface!r}, accepted here are {interfaces.describe(found)}")
        return mine
    mine = [address.text for each in found if each.up and not each.loopback for address in each.addresses]
    loopback = [name for name in named if ipaddress.ip_address(name).is_loopback]
    first = [name for name in named if name in mine]
    return list(dict.fromkeys([*first, *mine, *loopback])) or ["127.0.0.1"]


def resolve_node(name: str) -> list[str]:
    """Addresses of a host, by name or, for a node that only Slurm knows, by Slurm; none when nobody knows it."""
    return search.resolve(name) or _ask_slurm(name)


_slurm: dict[str, list[str]] = {}


def _ask_slurm(name: str) -> list[str]:
    """NodeAddr is what Slurm itself uses to reach a node."""
    program = shutil.which("scontrol")
    if program is None or not re.fullmatch(r"[\w.-]+", name):
        return []
    if name not in _slurm:
        try:
            shown = subprocess.run(
                [program, "-o", "show", "node", name], capture_output=True, text=True, timeout=_SECONDS, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            return []
        match = re.search(r"\bNodeAddr=(\S+)", shown)
        _slurm[name] = search.resolve(match[1]) if match and match[1] != name else []
    return _slurm[name]
