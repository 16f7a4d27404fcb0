"""Listening sockets of a rank while the job is formed.

There is one for each address by which others may reach it, and a Unix socket for ranks on the same machine.
"""

import errno
import os
import random
import socket
from collections.abc import Sequence

import msgspec

from horovod.common.network.endpoints import Endpoint


class Listeners:
    """Listening sockets on exactly the given addresses. Must be closed, also after an error."""

    def __init__(self, wanted: Sequence[Endpoint], backlog: int, ports: range = range(1)) -> None:
        """Open the sockets; addresses that cannot be used are skipped.

        Args:
            wanted: Addresses to listen on.
            backlog: Maximum length of the queue of pending connections.
            ports: Allowed ports; the first free one is used for each address. ``range(1)``: any.

        Raises:
            ValueError: If no address can be used; names addresses and reasons.
        """
        self.unix_name = os.urandom(16).hex()
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.tcp: list[socket.socket] = []
        self.endpoints: list[Endpoint] = []
        """Addresses of the TCP sockets, in the order of ``wanted``."""
        troubles = []
        try:
            self.unix.bind("\0horovod-" + self.unix_name)
            self.unix.listen(backlog)
            self.unix.setblocking(False)
            for each in wanted:
                try:
                    self.tcp.append(_listen(each.address, backlog, ports))
                except OSError as error:
                    troubles.append(f"{each.address} ({each.interface}): {error.strerror}")
                    continue
                self.endpoints.append(msgspec.structs.replace(each, port=self.tcp[-1].getsockname()[1]))
        except BaseException:
            self.close()
            raise
        if wanted and not self.tcp:
            self.close()
            raise ValueError(f"cannot listen on {'; '.join(troubles)}")

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        for sock in (self.unix, *self.tcp):
            sock.close()


def free_port() -> int:
    """Return a TCP port on which no process listens now, for a program that will.

    It is outside of the range from which the kernel takes ports of connections, so that none takes it meanwhile.
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
    """Listen on the first free port. Raises OSError, naming HOROVOD_PORT_RANGE if all its ports are taken."""
    for port in ports:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:  # so that connections of an earlier job in TIME_WAIT do not block the port
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
