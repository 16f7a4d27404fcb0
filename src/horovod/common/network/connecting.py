"""A rank's sockets during startup, the schedule of connection attempts to a peer, and TCP options.

A rank listens on each address at which other hosts can reach it, and on a Unix socket for ranks on the same machine.

The schedule performs no I/O: callers pass the time and make the connections. The best address is tried first. If it
does not answer within a fraction of a second, the next addresses are tried in parallel, as in RFC 8305. So an
unresponsive address costs little time.
"""

import errno
import math
import os
import random
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from horovod.common.network.interfaces import Endpoint

# Seconds to wait for an answer before also trying the next address.
HEAD_START = 0.25
# Seconds to wait for a connected peer, which is probably just busy, before also trying the next address.
BUSY_HEAD_START = 2.0
# Minimum and maximum delay in seconds before a retry. The delay doubles with each failure.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
_RECENT = 3.0

T = TypeVar("T")


@dataclass
class _Try(Generic[T]):
    where: T
    at: float
    """Time at which the attempt is due. Unused during the attempt."""
    pause: float = FIRST_PAUSE
    under_way: bool = False
    connected: bool = False
    outcome: str = ""


class Dialer(Generic[T]):
    """Schedule of connection attempts for one link. ``targets`` are distinct addresses of any type."""

    def __init__(self, targets: Sequence[T], now: float) -> None:
        self._tries = [_Try(target, now + index * HEAD_START) for index, target in enumerate(targets)]
        self._started_at = now
        # Last time at which a peer accepted a connection but sent no answer.
        self._contact = float("-inf")

    def due(self, now: float) -> list[T]:
        """Return the targets to try now. Call ``failed`` for each connection that is not used."""
        ready = [each for each in self._tries if not each.under_way and each.at <= now]
        for each in ready:
            each.under_way = True
        return [each.where for each in ready]

    def next_due(self) -> float:
        """Return the time at which ``due`` will return another target, or infinity while all are being tried."""
        return min((each.at for each in self._tries if not each.under_way), default=float("inf"))

    def connected(self, target: T, now: float) -> None:
        """Record that the target is connected and the handshake has started."""
        self._find(target).connected = True
        for each in self._untried():
            each.at = max(each.at, now + BUSY_HEAD_START)

    def failed(self, target: T, outcome: str, now: float, silent: bool = False) -> None:
        """Record that an attempt to connect has failed.

        Args:
            target: The target.
            outcome: Short description of the failure for messages.
            now: Current time in seconds.
            silent: True if the attempt timed out without being refused.
        """
        this = self._find(target)
        if this.connected and silent:
            self._contact = now
        this.under_way = this.connected = False
        this.outcome = outcome
        this.at = now + this.pause
        this.pause = min(2 * this.pause, LONGEST_PAUSE)
        for each in self._untried()[:1]:
            each.at = min(each.at, now)

    def hopeless(self, now: float, patience: float) -> bool:
        """Return True if no address has answered for ``patience`` seconds."""
        waiting = any(each.connected for each in self._tries) or now - self._contact < _RECENT or bool(self._untried())
        return now - self._started_at >= patience and not waiting

    def outcomes(self) -> list[tuple[T, str]]:
        """Return (target, last outcome) for each target that was tried, in order."""
        return [(each.where, each.outcome or _pending(each)) for each in self._tries]

    def _untried(self) -> list[_Try[T]]:
        return [each for each in self._tries if not each.under_way and not each.outcome]

    def _find(self, target: T) -> _Try[T]:
        return next(each for each in self._tries if each.where == target)


def _pending(each: _Try[T]) -> str:
    if each.connected:
        return "connected, but no answer"
    return "no answer" if each.under_way else "not tried"


class Listeners:
    """Listening sockets on the given addresses. Always close them after use."""

    def __init__(self, endpoints: Sequence[Endpoint], backlog: int, ports: range = range(1)) -> None:
        """Open the sockets, and skip addresses that cannot be used.

        Args:
            endpoints: Addresses to listen on.
            backlog: Maximum length of the queue of pending connections.
            ports: Allowed ports. Each address gets the first free one. ``range(1)`` means any port.

        Raises:
            ValueError: If no address can be used. The message names the addresses and the reasons.
        """
        self.unix_name = os.urandom(16).hex()
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.tcp: list[socket.socket] = []
        self.endpoints: list[Endpoint] = []
        """Addresses of the TCP sockets, in the order of ``endpoints``."""
        troubles = []
        try:
            self.unix.bind("\0horovod-" + self.unix_name)
            self.unix.listen(backlog)
            self.unix.setblocking(False)
            for each in endpoints:
                try:
                    self.tcp.append(_listen(each.address, backlog, ports))
                except OSError as error:
                    troubles.append(f"{each.address} ({each.interface}): {error.strerror}")
                    continue
                self.endpoints.append(msgspec.structs.replace(each, port=self.tcp[-1].getsockname()[1]))
        except BaseException:
            self.close()
            raise
        if endpoints and not self.tcp:
            self.close()
            raise ValueError(f"cannot listen on {'; '.join(troubles)}")

    def close(self) -> None:
        """Close the sockets. Can be called repeatedly."""
        for sock in (self.unix, *self.tcp):
            sock.close()


def free_port() -> int:
    """Return a free TCP port for a program that will listen on it later.

    The port is outside the kernel's range for outgoing connections, so no outgoing connection can take it meanwhile.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low = int(file.read().split()[0])
    except (OSError, ValueError):
        low = 32768
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in [*random.sample(range(10000, max(low, 10032)), 32), 0]:
        try:
            with socket.create_server(("", port), family=family, dualstack_ipv6=both) as sock:
                return int(sock.getsockname()[1])
        except OSError:
            continue
    return 0


def _listen(address: str, backlog: int, ports: range) -> socket.socket:
    """Listen on the first free port. If all are taken, raise an OSError that mentions HOROVOD_PORT_RANGE."""
    for port in ports:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:  # also allow ports that still have connections in TIME_WAIT
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            sock.listen(backlog)
            sock.setblocking(False)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE or not port:
                raise
    text = f"no port from {ports[0]} to {ports[-1]} (HOROVOD_PORT_RANGE) is free; each rank of a host needs one"
    raise OSError(errno.EADDRINUSE, text)


# The code below sets TCP options for connections between hosts: congestion control, and detection of lost hosts.
#
# Congestion control: some systems use BBR by default, because it works well on the Internet. BBR estimates the path's
# bandwidth and uses a timer to send at that rate. Between hosts of one cluster, BBR costs CPU time and delays short
# transfers. There, Reno is faster: it sends faster and faster until packets are lost, and recovers from a loss within
# milliseconds. Cubic was slower for short transfers, because varying delays end its slow start early
# (benchmarks/history/network.md).
#
# Keepalive: if a process dies, its connections are closed and its peers notice immediately. If a host loses power or
# network, an idle connection to it would stay open for hours. So idle connections are probed. Control connections also
# limit the time that data can stay unacknowledged (TCP_USER_TIMEOUT). Data connections do not have this limit, because
# it would also end a connection to a live peer that does not read. HOROVOD_GLOO_TIMEOUT_SECONDS limits how long a peer
# can do that. The engine itself checks whether the peer's kernel still answers (``Connections::look_for_silence``).

_NEAR_US = 1000
_PLAIN = ("reno", "cubic")
_MIN_RTT = struct.Struct("=I")
_MIN_RTT_AT = 148  # offset of tcpi_min_rtt in struct tcp_info, linux/tcp.h


def congestion_choices(requested: str, system: str, round_trip_us: int) -> tuple[str, ...]:
    """Return the congestion control algorithms to request, in order of preference, or () to keep the current one.

    Args:
        requested: Value of HOROVOD_TCP_CONGESTION.
        system: Current algorithm of the connection.
        round_trip_us: Round-trip time in microseconds.
    """
    if requested == "system":
        return ()
    if requested != "auto":
        return (requested,)
    return _PLAIN if system == "bbr" and round_trip_us < _NEAR_US else ()


def set_congestion(sock: socket.socket, requested: str) -> None:
    """Set the congestion control algorithm of a connected TCP socket.

    Raises:
        ValueError: If the system rejects an algorithm that the user requested by name. The message names
            HOROVOD_TCP_CONGESTION.
    """
    level, option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    system = sock.getsockopt(level, option, 16).partition(b"\0")[0].decode()
    error = ""
    for name in congestion_choices(requested, system, _round_trip_us(sock)):
        try:
            sock.setsockopt(level, option, name.encode())
            return
        except OSError as reason:
            error = reason.strerror or str(reason)
    if error and requested != "auto":
        raise ValueError(
            f"HOROVOD_TCP_CONGESTION must be auto, system, or one of {_allowed()}, got {requested!r}, which the system "
            f"does not allow ({error})"
        )


def _round_trip_us(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _MIN_RTT_AT + _MIN_RTT.size:
        return _NEAR_US  # old kernels do not report the minimum round-trip time
    measured: int = _MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0]
    return measured


def _allowed() -> str:
    try:
        with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control") as file:
            return ", ".join(file.read().split())
    except OSError:
        return "those in /proc/sys/net/ipv4/tcp_allowed_congestion_control"


_LATER_PROBES = 3
_MAX_SECONDS = 32767  # maximum number of seconds that the kernel accepts


def probe_times(seconds: float) -> tuple[int, int, int]:
    """Return keepalive options: (idle seconds before the first probe, seconds between probes, probe count).

    A lost host is detected after about ``seconds`` in total.
    """
    interval = max(1, math.floor(seconds / (_LATER_PROBES + 1)))
    idle = max(1, math.floor(seconds) - _LATER_PROBES * interval)
    return min(idle, _MAX_SECONDS), min(interval, _MAX_SECONDS), _LATER_PROBES


def set_keepalive(sock: socket.socket, seconds: float, control: bool) -> None:
    """Make a connected TCP socket fail after about ``seconds`` (at least 4) without a response."""
    idle, interval, probes = probe_times(seconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    if control:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
