"""Congestion control of the connections that carry data between hosts.

BBR, which some systems have as their default for the Internet's sake, sends by a timer what it believes the path to
take. Between hosts of one cluster that costs processor time and leaves short transfers waiting; Reno, which sends until
something is lost, is faster there, and recovers from a loss within milliseconds. Cubic was slower in short transfers,
where varying delays end its slow start early (benchmarks/RESULTS.md).
"""

import socket
import struct

_NEAR_US = 1000
_PLAIN = ("reno", "cubic")
_MIN_RTT = struct.Struct("=I")
_MIN_RTT_AT = 148  # tcpi_min_rtt in struct tcp_info, linux/tcp.h


def choose(wanted: str, system: str, round_trip_us: int) -> tuple[str, ...]:
    """What to ask for, in this order, until one is granted; empty: leave it as it is. Pure.

    ``wanted``: HOROVOD_TCP_CONGESTION. ``system``: what the connection has. ``round_trip_us``: microseconds.
    """
    if wanted == "system":
        return ()
    if wanted != "auto":
        return (wanted,)
    return _PLAIN if system == "bbr" and round_trip_us < _NEAR_US else ()


def apply(sock: socket.socket, wanted: str) -> None:
    """Sets the connected TCP socket's congestion control.

    Raises ValueError naming HOROVOD_TCP_CONGESTION when the system does not grant what was asked for by name.
    """
    level, option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    system = sock.getsockopt(level, option, 16).partition(b"\0")[0].decode()
    error = ""
    for name in choose(wanted, system, _round_trip_us(sock)):
        try:
            sock.setsockopt(level, option, name.encode())
            return
        except OSError as reason:
            error = reason.strerror or str(reason)
    if error and wanted != "auto":
        raise ValueError(
            f"HOROVOD_TCP_CONGESTION is {wanted!r}, which the system does not grant ({error}); accepted are auto, "
            f"system, or one of {_allowed()}"
        )


def _round_trip_us(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _MIN_RTT_AT + _MIN_RTT.size:
        return _NEAR_US  # an old kernel: unknown
    measured: int = _MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0]
    return measured


def _allowed() -> str:
    try:
        with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control") as file:
            return ", ".join(file.read().split())
    except OSError:
        return "those in /proc/sys/net/ipv4/tcp_allowed_congestion_control"
