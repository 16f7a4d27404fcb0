"""Detection of a peer's host that is gone without closing the connection, by the kernel.

If a process dies, its connections are closed and its peers know at once. If a host loses power or network, an idle
connection to it would stay open for hours. So idle connections are probed, and control connections also limit the time
that data may stay unacknowledged. Data connections do not have that limit (TCP_USER_TIMEOUT), because it would also end
a connection to a live peer that does not read for a while, which HOROVOD_GLOO_TIMEOUT_SECONDS decides. The engine
itself checks whether the peer's kernel still answers (``World::look_for_silence``).
"""

import math
import socket

_LATER_PROBES = 3
_MOST = 32767  # maximum seconds that the kernel accepts


def probe_times(seconds: float) -> tuple[int, int, int]:
    """Return (idle seconds before the first probe, seconds between probes, number of probes).

    Together they take about ``seconds``. Pure.
    """
    interval = max(1, math.floor(seconds / (_LATER_PROBES + 1)))
    idle = max(1, math.floor(seconds) - _LATER_PROBES * interval)
    return min(idle, _MOST), min(interval, _MOST), _LATER_PROBES


def apply(sock: socket.socket, seconds: float, control: bool) -> None:
    """Make a connected TCP socket fail after about ``seconds`` (at least 4) without any sign of the other host."""
    idle, interval, probes = probe_times(seconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    if control:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
