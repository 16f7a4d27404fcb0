"""API for programs that start elastic workers themselves and notify them when the available hosts change."""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod._bounded_server import BoundedServer
from horovod.common.contract.membership import HostUpdateResult
from horovod.common.elastic.updates import WorkerNotificationManager
from horovod.common.network.interfaces import scan
from horovod.common.security.auth import AuthError, Place, accept, connect, derive_key

__all__ = [
    "HOROVOD_GLOO_IFACE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_RANK",
    "HostUpdateResult",
    "HostsUpdatedRequest",
    "WorkerNotificationClient",
    "WorkerNotificationManager",
    "WorkerNotificationService",
]

# Each notification is sent over a new connection, and both ends prove that they know the key. Workers of `horovodrun`
# receive notifications through the job's store instead and need no port.

# Purpose code by which the handshake identifies notification connections
_PURPOSE = 100
_NEWS = struct.Struct("<dB")  # Wire format of a notification: timestamp and HostUpdateResult
_MAC = 32
_SECONDS = 10.0  # Maximum duration of a connection (s)
_ACKNOWLEDGED = b"k"

Addresses = Mapping[str, Sequence[tuple[str, int]]]
"""Type of addresses: (address, port) pairs for each network interface."""


class WorkerNotificationService:
    """Server in a worker that receives notifications and passes them to `manager`.

    Args:
        key: Secret key of any length.
        nic: Network interface to listen on, or None for loopback.
        manager: Object whose `handle_hosts_updated` method is called for each notification.

    Raises:
        ValueError: If the interface does not exist.
    """

    def __init__(self, key: bytes, nic: str | None, manager: WorkerNotificationManager) -> None:
        self._key = derive_key(bytes(key), "notifications")
        self._manager = manager
        self._nic = nic if nic is not None else "lo"
        found = {each.name: [address.text for address in each.addresses] for each in scan()}
        if not found.get(self._nic):
            raise ValueError(f"nic must be one of {', '.join(sorted(found))}, got {nic!r}")
        self._server = BoundedServer((found[self._nic][0], 0), self._serve, patience=_SECONDS, name="hvd-notifications")

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Return the addresses at which clients can reach the server, keyed by network interface."""
        host, port = self._server.server_address[:2]
        return {self._nic: [(host, port)]}

    def shutdown(self) -> None:
        """Stop the server. Can be called repeatedly."""
        self._server.close()

    def _serve(self, peer: socket.socket, _client: object, server: BoundedServer) -> None:
        if accept(peer, self._key, 0, 0, _SECONDS).purpose != _PURPOSE:
            return
        peer.settimeout(_SECONDS)
        received = b""
        while len(received) < _NEWS.size + _MAC:
            data = peer.recv(_NEWS.size + _MAC - len(received))
            if not data:
                return
            received += data
        server.received(peer)
        news, mac = received[: _NEWS.size], received[_NEWS.size :]
        if not hmac.compare_digest(mac, hmac.digest(self._key, news, "sha256")):
            return
        timestamp, result = _NEWS.unpack(news)
        self._manager.handle_hosts_updated(timestamp, HostUpdateResult(result))
        peer.sendall(_ACKNOWLEDGED)


class WorkerNotificationClient:
    """Client that notifies one worker through its `WorkerNotificationService`.

    Args:
        addresses: Addresses of the service.
        key: Key of the service.
        verbose: Ignored.
        match_intf: Ignored.
    """

    def __init__(self, addresses: Addresses, key: bytes, verbose: int, match_intf: bool = False) -> None:
        del verbose, match_intf
        self._places = [place for places in addresses.values() for place in places]
        self._key = derive_key(bytes(key), "notifications")
        if not self._places:
            raise ValueError(f"addresses must have at least one address, got {dict(addresses)!r}")

    def notify_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Notify the worker and wait for its reply.

        Raises:
            ConnectionError: If the worker does not answer at any address.
        """
        why = ""
        for host, port in self._places:
            try:
                with socket.create_connection((host, port), _SECONDS) as peer:
                    connect(peer, self._key, Place(_PURPOSE, 0, 1, 0), _SECONDS)
                    news = _NEWS.pack(timestamp, int(update_res))
                    peer.settimeout(_SECONDS)
                    peer.sendall(news + hmac.digest(self._key, news, "sha256"))
                    if peer.recv(1) == _ACKNOWLEDGED:
                        return
                    why = "it hung up"
            except (AuthError, OSError) as error:
                why = str(error)
        tried = ", ".join(f"{host}:{port}" for host, port in self._places)
        raise ConnectionError(f"no worker could be told of changed hosts at {tried}: {why}")


HOROVOD_GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
HOROVOD_GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
HOROVOD_GLOO_IFACE = "HOROVOD_GLOO_IFACE"
HOROVOD_HOSTNAME = "HOROVOD_HOSTNAME"
HOROVOD_LOCAL_RANK = "HOROVOD_LOCAL_RANK"


@dataclass(frozen=True)
class HostsUpdatedRequest:
    """Notification that the available hosts have changed.

    Attributes:
        timestamp: Time of the change (s). It must exceed all earlier timestamps.
        res: Kind of change: hosts were added, removed, or both.
    """

    timestamp: float
    res: HostUpdateResult = HostUpdateResult.no_update
