"""Exchanges the records of all ranks, through one leader per node.

The first rank of each node gets all records from the store and passes them to the other ranks of the node. With n nodes
and r ranks, the store sends n * r records through the launcher's network instead of r * r.
"""

import socket
import struct
import time
from collections.abc import Callable, Mapping

from horovod.common.bootstrap.errors import LinkError
from horovod.common.bootstrap.mesh import MeshBuilder
from horovod.common.bootstrap.peers import NODE, Link, Peer, decode_peers, label, make_first_plan, make_plan
from horovod.common.network.connecting import Listeners
from horovod.common.store.client import ExchangeResult
from horovod.common.store.messages import MAX_REPLY_BYTES, pack, unpack

_LENGTH = struct.Struct(">Q")
_CHECK_SECONDS = 0.25
_REASON_SECONDS = 1.0

Check = Callable[[], None]


def spread(
    met: ExchangeResult, me: int, own: Peer, key: bytes, listeners: Listeners, seconds: float, check: Check
) -> tuple[list[bytes], dict[Link, socket.socket]]:
    """Collect the records of all ranks.

    Args:
        met: The store's reply to this rank.
        me: This rank.
        own: This rank's record.
        key: Key that authenticates links.
        listeners: Listening sockets of this rank.
        seconds: Time limit in seconds.
        check: Function that is called regularly. It can raise an error to give up, and must not block.

    Returns:
        The records by rank, and the open links within the node that transferred them.

    Raises:
        LinkError: If the records do not arrive. All links are closed.
        OSError: If a connection fails. All links are closed.
        ValueError: If the leader runs another version. The caller reports these errors to the other ranks.
    """
    if met.holder == me:
        return _lead(met, me, key, listeners, seconds, check)
    leader = decode_peers(met.values, met.holder)[0]
    mesh = MeshBuilder(
        make_first_plan(me, met.holder), {met.holder: leader, me: own}, key, met.round, listeners, kinds=(NODE,)
    )
    links = mesh.run(seconds, check)
    try:
        data = _receive(links[NODE, met.holder], label(met.holder, leader), seconds, check)
        return unpack(data), links
    except ValueError as error:
        _close(links)
        raise LinkError(f"{label(met.holder, leader)} has sent no records: {error}") from None
    except BaseException:
        _close(links)
        raise


def _lead(
    met: ExchangeResult, me: int, key: bytes, listeners: Listeners, seconds: float, check: Check
) -> tuple[list[bytes], dict[Link, socket.socket]]:
    # If versions differ, the caller reports the error through the store, so the other ranks receive it too.
    peers = decode_peers(met.values)
    plan = make_plan(me, peers)
    if not plan.local_children:
        return met.values, {}
    links = MeshBuilder(plan, peers, key, met.round, listeners, kinds=(NODE,)).run(seconds, check)
    packed = pack(met.values)
    deadline = time.monotonic() + seconds
    try:
        for rank in plan.local_children:
            _send(links[NODE, rank], packed, label(rank, peers[rank]), deadline, check)
    except BaseException:
        _close(links)
        raise
    return met.values, links


def _send(sock: socket.socket, data: bytes, to: str, deadline: float, check: Check) -> None:
    left = memoryview(_LENGTH.pack(len(data)) + data)
    sock.settimeout(_CHECK_SECONDS)
    while left:
        if time.monotonic() >= deadline:
            raise LinkError(f"timed out waiting for {to} to take the records of all ranks")
        try:
            left = left[sock.send(left) :]
        except TimeoutError:
            check()


def _receive(sock: socket.socket, leader: str, seconds: float, check: Check) -> bytes:
    deadline = time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size, leader, deadline, check))
    if length > MAX_REPLY_BYTES:
        raise LinkError(f"records must have at most {MAX_REPLY_BYTES} bytes, got {length} from {leader}")
    return _receive_exactly(sock, length, leader, deadline, check)


def _receive_exactly(sock: socket.socket, count: int, leader: str, deadline: float, check: Check) -> bytes:
    data = bytearray()
    sock.settimeout(_CHECK_SECONDS)
    while len(data) < count:
        if time.monotonic() >= deadline:
            raise LinkError(f"timed out waiting for the records of all ranks from {leader}")
        try:
            piece = sock.recv(min(count - len(data), 1 << 20))
        except TimeoutError:
            check()
            continue
        if not piece:
            _receive_reason(check)
            raise LinkError(f"{leader} closed the connection instead of sending the records of all ranks")
        data += piece
    return bytes(data)


def _receive_reason(check: Check) -> None:
    """Wait up to one second for the disconnected peer's failure report, and raise it if it arrives."""
    deadline = time.monotonic() + _REASON_SECONDS
    while time.monotonic() < deadline:
        check()
        time.sleep(_REASON_SECONDS / 20)


def _close(links: Mapping[Link, socket.socket]) -> None:
    for sock in links.values():
        sock.close()
