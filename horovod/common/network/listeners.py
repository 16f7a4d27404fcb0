"""A rank's listening sockets, open while the job is formed: one on each address that others may reach it by, and one
Unix socket for ranks on the same machine.
"""

import errno
import os
import socket
from collections.abc import Sequence

import msgspec

from horovod.common.network.endpoints import Endpoint


class Listeners:
    """Bound to the given addresses and to nothing else. Close it, also after an error."""

    def __init__(self, wanted: Sequence[Endpoint], backlog: int, ports: range = range(1)) -> None:
        """``ports``: those that may be used, the first free one for each address; ``range(1)``: any.

        An address that cannot be used is left out. Raises ValueError naming addresses and reasons when none is left.
        """
        self.unix_name = os.urandom(16).hex()
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.tcp: list[socket.socket] = []
        self.endpoints: list[Endpoint] = []
        """What the TCP sockets listen on, in the order of ``wanted``."""
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
        """May be called again."""
        for sock in (self.unix, *self.tcp):
            sock.close()


def _listen(address: str, backlog: int, ports: range) -> socket.socket:
    """Raises OSError; one that names HOROVOD_PORT_RANGE when all its ports are taken."""
    for port in ports:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:  # what a job before this one has left in TIME_WAIT does not keep a port taken
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
