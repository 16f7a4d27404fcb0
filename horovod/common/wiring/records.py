"""How every rank gets everybody's records: the first rank of each node from the store, the others from that one.

So what goes through the store, and with it through the launcher's network, grows with the number of nodes times that of
ranks, and for the ranks of one host with their number alone.
"""

import socket
import struct
import time
from collections.abc import Callable, Mapping

from horovod.common.network.listeners import Listeners
from horovod.common.store.client import Met
from horovod.common.store.messages import MAX_REPLY_BYTES, pack, unpack
from horovod.common.wiring.link_errors import LinkError
from horovod.common.wiring.links import NODE, Link
from horovod.common.wiring.mesh import MeshBuilder
from horovod.common.wiring.peers import Peer, decode_peers, label, make_first_plan, make_plan

_LENGTH = struct.Struct(">Q")
_CHECK_SECONDS = 0.25
_REASON_SECONDS = 1.0

Check = Callable[[], None]


def spread(
    met: Met, me: int, mine: Peer, key: bytes, listeners: Listeners, seconds: float, check: Check
) -> tuple[list[bytes], dict[Link, socket.socket]]:
    """(the records by rank, the node links over which they went).

    ``met``: what the store has told this rank, ``mine`` its own record. ``check`` is called now and then and may raise
    to give up; it must not wait. Raises LinkError or OSError, leaving nothing open, and ValueError when the leader's
    record is of another version; the caller then tells the others.
    """
    if met.holder == me:
        return _lead(met, me, key, listeners, seconds, check)
    leader = decode_peers(met.values, met.holder)[0]
    mesh = MeshBuilder(
        make_first_plan(me, met.holder), {met.holder: leader, me: mine}, key, met.round, listeners, kinds=(NODE,)
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
    met: Met, me: int, key: bytes, listeners: Listeners, seconds: float, check: Check
) -> tuple[list[bytes], dict[Link, socket.socket]]:
    # Of another version of a record the others hear from the store, for the caller tells it.
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
            raise LinkError(f"waited in vain for {to} to take everybody's records")
        try:
            left = left[sock.send(left) :]
        except TimeoutError:
            check()


def _receive(sock: socket.socket, leader: str, seconds: float, check: Check) -> bytes:
    deadline = time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size, leader, deadline, check))
    if length > MAX_REPLY_BYTES:
        raise LinkError(f"{leader} announces records of {length} bytes, accepted are at most {MAX_REPLY_BYTES}")
    return _receive_exactly(sock, length, leader, deadline, check)


def _receive_exactly(sock: socket.socket, count: int, leader: str, deadline: float, check: Check) -> bytes:
    data = bytearray()
    sock.settimeout(_CHECK_SECONDS)
    while len(data) < count:
        if time.monotonic() >= deadline:
            raise LinkError(f"waited in vain for everybody's records from {leader}")
        try:
            piece = sock.recv(min(count - len(data), 1 << 20))
        except TimeoutError:
            check()
            continue
        if not piece:
            _hear_why(check)
            raise LinkError(f"{leader} hung up instead of sending everybody's records")
        data += piece
    return bytes(data)


def _hear_why(check: Check) -> None:
    """Who hangs up has told the store why, if it could."""
    deadline = time.monotonic() + _REASON_SECONDS
    while time.monotonic() < deadline:
        check()
        time.sleep(_REASON_SECONDS / 20)


def _close(links: Mapping[Link, socket.socket]) -> None:
    for sock in links.values():
        sock.close()
