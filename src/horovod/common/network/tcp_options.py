"""TCP options of connections between hosts: congestion control, and detection of hosts that are gone.

Congestion control: some systems use BBR by default, because it works well on the Internet. BBR estimates the rate of
the path and uses a timer to send at that rate. Between hosts of one cluster, that costs CPU time and delays short
transfers. Reno sends until packets are lost. There it is faster, and it recovers from a loss within milliseconds. Cubic
was slower for short transfers, because varying delays end its slow start early (benchmarks/history/network.md).

Keepalive: if a process dies, its connections are closed and its peers know at once. If a host loses power or network,
an idle connection to it would stay open for hours. So idle connections are probed, and control connections also limit
the time that data may stay unacknowledged. Data connections do not have that limit (TCP_USER_TIMEOUT), because it would
also end a connection to a live peer that does not read. For how long a peer may do that is up to
HOROVOD_GLOO_TIMEOUT_SECONDS. The engine itself checks whether the peer's kernel still answers
(``Connections::look_for_silence``).
"""

import math
import socket
import struct

_NEAR_US = 1000
_PLAIN = ("reno", "cubic")
_MIN_RTT = struct.Struct("=I")
_MIN_RTT_AT = 148  # offset of tcpi_min_rtt in struct tcp_info, linux/tcp.h


def congestion_choices(wanted: str, system: str, round_trip_us: int) -> tuple[str, ...]:
    """Return the algorithms to request, in this order, until the system grants one; empty to keep the current one.

    Args:
        wanted: Value of HOROVOD_TCP_CONGESTION.
        system: Current algorithm of the connection.
        round_trip_us: Round-trip time in microseconds.
    """
    if wanted == "system":
        return ()
    if wanted != "auto":
        return (wanted,)
    return _PLAIN if system == "bbr" and round_trip_us < _NEAR_US else ()


def set_congestion(sock: socket.socket, wanted: str) -> None:
    """Set the congestion control algorithm of a connected TCP socket.

    Raises:
        ValueError: If the system does not grant an algorithm requested by name. The message names
            HOROVOD_TCP_CONGESTION.
    """
    level, option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    system = sock.getsockopt(level, option, 16).partition(b"\0")[0].decode()
    error = ""
    for name in congestion_choices(wanted, system, _round_trip_us(sock)):
        try:
            sock.setsockopt(level, option, name.encode())
            return
        except OSError as reason:
            error = reason.strerror or str(reason)
    if error and wanted != "auto":
        raise ValueError(
            f"HOROVOD_TCP_CONGESTION must be auto, system, or one of {_allowed()}, got {wanted!r}, which the system "
            f"does not allow ({error})"
        )


def _round_trip_us(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _MIN_RTT_AT + _MIN_RTT.size:
        return _NEAR_US  # an old kernel does not know this option
    measured: int = _MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0]
    return measured


def _allowed() -> str:
    try:
        with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control") as file:
            return ", ".join(file.read().split())
    except OSError:
        return "those in /proc/sys/net/ipv4/tcp_allowed_congestion_control"


_LATER_PROBES = 3
_MOST = 32767  # maximum number of seconds that the kernel accepts


def probe_times(seconds: float) -> tuple[int, int, int]:
    """Return (idle seconds before the first probe, seconds between probes, number of probes).

    A lost host is detected after about ``seconds`` in total.
    """
    interval = max(1, math.floor(seconds / (_LATER_PROBES + 1)))
    idle = max(1, math.floor(seconds) - _LATER_PROBES * interval)
    return min(idle, _MOST), min(interval, _MOST), _LATER_PROBES


def set_keepalive(sock: socket.socket, seconds: float, control: bool) -> None:
    """Make a connected TCP socket fail if the other host does not respond for about ``seconds`` (at least 4)."""
    idle, interval, probes = probe_times(seconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    if control:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
