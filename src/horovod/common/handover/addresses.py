"""Addresses of this host that others may reach, and addresses of hosts named by a launcher."""

import ipaddress
import re
import shutil
import subprocess
import time
from collections.abc import Sequence

from horovod.common.handover import search
from horovod.common.network import interfaces
from horovod.common.network.interfaces import to_listen

_SECONDS = 5.0
_SILENT_SECONDS = 10.0


def own_addresses(interface: str = "", named: Sequence[str] = ()) -> list[str]:
    """Return the addresses to listen on, most likely first.

    First come this host's addresses in ``named``, then those that its ranks also listen on, because a host may be
    reached through several networks.

    Args:
        interface: Value of HOROVOD_GLOO_IFACE; restricts the result to these interfaces.
        named: Addresses by which a launcher may refer to this host.

    Raises:
        ValueError: If HOROVOD_GLOO_IFACE names no usable interface.
        OSError: If the interfaces cannot be listed.
    """
    mine = [each.address for each in to_listen(interfaces.scan(), interface, alone=False)]
    if interface:
        return mine
    first = [name for name in named if name in mine and not _is_loopback(name)]
    loopback = [name for name in named if _is_loopback(name)]  # such as Debian's 127.0.1.1 for the host's own name
    return list(dict.fromkeys([*first, *mine, *loopback]))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def resolve_node(name: str) -> list[str]:
    """Return the addresses of a host; ask Slurm if the name is otherwise unknown. Empty if it stays unknown."""
    return search.resolve(name) or _ask_slurm(name)


_slurm: dict[str, list[str]] = {}
_silent_until = [0.0]  # set if Slurm's controller did not answer, so that not every name costs a timeout


def _ask_slurm(name: str) -> list[str]:
    """Return the host's addresses by its NodeAddr, which Slurm itself uses to reach the node."""
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
