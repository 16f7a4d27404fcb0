"""Addresses of this host that others may reach, and of hosts that a launcher names."""

import ipaddress
import re
import shutil
import subprocess
import time
from collections.abc import Sequence

from horovod.common.handover import search
from horovod.common.network import interfaces
from horovod.common.network.endpoints import to_listen

_SECONDS = 5.0
_SILENT_SECONDS = 10.0


def own_addresses(interface: str = "", named: Sequence[str] = ()) -> list[str]:
    """Addresses to listen on, the likely ones first: those of this host in ``named``, then the ones that its ranks
    listen on too, for a host may be reached by several networks. ``interface``: HOROVOD_GLOO_IFACE, which excludes all
    others.

    Raises ValueError naming HOROVOD_GLOO_IFACE when it names no interface that can be used, OSError when the
    interfaces cannot be listed.
    """
    mine = [each.address for each in to_listen(interfaces.scan(), interface, alone=False)]
    if interface:
        return mine
    first = [name for name in named if name in mine and not _is_loopback(name)]
    loopback = [name for name in named if _is_loopback(name)]  # such as Debian's 127.0.1.1 for its own name
    return list(dict.fromkeys([*first, *mine, *loopback]))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def resolve_node(name: str) -> list[str]:
    """Addresses of a host, by name or, for a node that only Slurm knows, by Slurm; none when nobody knows it."""
    return search.resolve(name) or _ask_slurm(name)


_slurm: dict[str, list[str]] = {}
_silent_until = [0.0]  # Slurm's controller did not answer: no process waits for it once per name


def _ask_slurm(name: str) -> list[str]:
    """NodeAddr is what Slurm itself uses to reach a node."""
    program = shutil.which("scontrol")
    if program is None or not re.fullmatch(r"[\w.-]+", name) or time.monotonic() < _silent_until[0]:
        return _slurm.get(name, [])
    if not _slurm.get(name):
        try:
            shown = subprocess.run(
                [program, "-o", "show", "node", name], capture_output=True, text=True, timeout=_SECONDS, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            _silent_until[0] = time.monotonic() + _SILENT_SECONDS
            return []
        match = re.search(r"\bNodeAddr=(\S+)", shown)
        _slurm[name] = search.resolve(match[1]) if match and match[1] != name else []
    return _slurm[name]
