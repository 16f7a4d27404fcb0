"""What an agent tells about its host before anything is started there."""

from __future__ import annotations

import os
import platform
import socket
import time

import msgspec

from horovod._version import __version__
from horovod.common.contract import cgroups
from horovod.common.network.interfaces import Interface, scan


class HostFacts(msgspec.Struct, frozen=True):
    """One host, as its agent sees it. `clock`: its wall-clock time in seconds since 1970."""

    hostname: str
    version: str
    python: str
    clock: float
    cores: int  # that workers there can keep busy
    interfaces: list[Interface]
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES, which workers do not get, but says what it may give out


def gather() -> HostFacts:
    """The facts of this host, now."""
    return HostFacts(
        hostname=socket.gethostname(),
        version=__version__,
        python=platform.python_version(),
        clock=time.time(),
        cores=cgroups.usable_cores(),
        interfaces=_interfaces(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _interfaces() -> list[Interface]:
    try:
        return scan()
    except OSError:  # a sandbox without netlink: the ranks will say so if they need it
        return []
