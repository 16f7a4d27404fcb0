"""Makes the kernel notice that the host at the other end of a connection is gone, when it could not say goodbye.

A process that dies closes its connections, and its peers know at once. A host that loses power or network says
nothing, and an idle connection to it would stay open for hours. Hence probes on idle connections, and on control
connections also a limit for data that is not acknowledged. Not on data connections: there that limit (TCP_USER_TIMEOUT)
would also end a connection to a peer that is alive but does not read for a while, which HOROVOD_GLOO_TIMEOUT_SECONDS
decides about; whether the kernel over there still answers, the engine looks itself (``World::look_for_silence``).
"""

import math
import socket

_LATER_PROBES = 3
_MOST = 32767  # seconds that the kernel takes


def probe_times(seconds: float) -> tuple[int, int, int]:
    """(seconds of idleness before the first probe, seconds between probes, probes) that together take about
    ``seconds``. Pure.
    """
    interval = max(1, math.floor(seconds / (_LATER_PROBES + 1)))
    idle = max(1, math.floor(seconds) - _LATER_PROBES * interval)
    return min(idle, _MOST), min(interval, _MOST), _LATER_PROBES


def apply(sock: socket.socket, seconds: float, control: bool) -> None:
    """Makes the connected TCP socket fail after about ``seconds`` (at least 4) without any sign of the other host."""
    idle, interval, probes = probe_times(seconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    if control:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
