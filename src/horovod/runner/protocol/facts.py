"""Facts about a host that its agent reports before it starts anything."""

from __future__ import annotations

import os
import platform
import socket
import time

import msgspec

from horovod._version import __version__
from horovod.common.contract import cgroups
from horovod.common.network.connecting import free_port
from horovod.common.network.interfaces import Interface, scan


class HostFacts(msgspec.Struct, frozen=True):
    """Facts about one host, as its agent sees it. `clock` is the wall-clock time in seconds since 1970."""

    hostname: str
    version: str
    python: str
    clock: float
    cores: int  # number of cores that workers there can use
    interfaces: list[Interface]
    free_port: int = 0  # a TCP port on which nothing listened
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES: workers do not get it, but it limits the assigned GPUs


def gather() -> HostFacts:
    """Return the current facts about this host."""
    return HostFacts(
        hostname=socket.gethostname(),
        version=__version__,
        python=platform.python_version(),
        clock=time.time(),
        cores=cgroups.usable_cores(),
        interfaces=_interfaces(),
        free_port=free_port(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _interfaces() -> list[Interface]:
    try:
        return scan()
    except OSError:  # a sandbox without netlink; the ranks raise an error if they need it
        return []
