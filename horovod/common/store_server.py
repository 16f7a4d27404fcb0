"""The store's server: one thread with one poll loop, so no state is shared and no lock is needed."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from socket import socket as TcpSocket

import msgspec
import zmq
import zmq.utils.z85

from horovod.common.store_messages import MAX_REQUEST_BYTES, Exchange, Get, Reply, Request, Set, curve_pair

MAX_TOTAL_BYTES = 1 << 30

Waiting = dict[str, tuple[int, frozenset[int]]]
"""By group: how many ranks it has, and those that wait for the others."""

_HANDSHAKE_MS = 10_000


class StoreServer:
    """Serves the store of one job until ``close``. Threads of its own, no processes; closing frees the port at once."""

    def __init__(self, key: bytes, host: str = "127.0.0.1", *, listeners: Sequence[TcpSocket] = ()) -> None:
        """``key``: the job key. ``host``: address of the interface to listen on; the system chooses the port.

        ``listeners``: listening sockets with one port to be used instead, which then belong to the server.
        Raises ValueError when ``host`` is not an address of this machine.
        """
        self._context = zmq.Context(io_threads=1)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        self.address: tuple[str, int]
        """(host, port) to connect to: HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT."""
        try:
            gate = _Gate(self._context, curve_pair(key, "client")[0])
            socket, self.address = _listen(self._context, key, host, listeners)
        except BaseException:
            self._context.destroy(linger=0)
            os.close(self._stop)
            raise
        self._table = _Table()
        self._thread = threading.Thread(
            target=_serve, args=(self._table, socket, gate, self._stop), name="horovod-store", daemon=True
        )
        self._thread.start()

    @property
    def completed(self) -> int:
        """Exchanges that have been completed. May be read from any thread, also after ``close``."""
        return self._table.completed

    def waiting(self) -> "Waiting":
        """Who waits in an exchange now. May be called from any thread, also after ``close``."""
        return self._table.waiting

    def close(self) -> None:
        """Stops serving; waiting clients run into their deadlines. May be called again."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        self._thread.join(timeout=10)
        self._context.destroy(linger=0)
        os.close(self._stop)

    def __enter__(self) -> "StoreServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(
    context: "zmq.Context[zmq.Socket[bytes]]", key: bytes, host: str, listeners: Sequence[TcpSocket]
) -> tuple["zmq.Socket[bytes]", tuple[str, int]]:
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = curve_pair(key, "server")
    socket.zap_domain = b"horovod"
    socket.maxmsgsize = MAX_REQUEST_BYTES
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.linger = 0
    for listener in listeners:
        at: tuple[str, int] = listener.getsockname()[:2]
        socket.ipv6 = ":" in at[0]
        socket.setsockopt(zmq.USE_FD, listener.detach())
        socket.bind(_endpoint(*at))
    if listeners:
        return socket, at
    socket.ipv6 = ":" in host
    try:
        socket.bind(_endpoint(host, "*"))
    except zmq.ZMQError as error:
        raise ValueError(f"host is {host!r}, accepted is an address of this machine: {error}") from None
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return socket, (host, int(endpoint.rsplit(":", 1)[1]))


def _endpoint(host: str, port: int | str) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class _Gate:
    """Answers ZeroMQ's question (ZAP, RFC 27) whether a client may come in: only with the job's client key."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", client_public: bytes) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")
        self._accepted = zmq.utils.z85.decode(client_public)

    def answer(self) -> None:
        frames = self.socket.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        mechanism, credentials = (frames[5], frames[6:]) if len(frames) > 5 else (b"", [])
        # Public keys are no secret, so a plain comparison will do; the CURVE handshake proved that the peer has the
        # secret one.
        known = mechanism == b"CURVE" and credentials == [self._accepted]
        code, text = (b"200", b"OK") if known else (b"400", b"not a member of this job")
        self.socket.send_multipart([b"1.0", request, code, text, b"member" if known else b"", b""])


@dataclass
class _Waiting:
    """A Get that lacks names."""

    client: bytes
    request: Get
    deadline: float


@dataclass
class _Member:
    client: bytes
    request: Exchange
    deadline: float


@dataclass
class _Round:
    size: int
    members: dict[int, _Member] = field(default_factory=dict)


class _Table:
    """The store's state: requests in, replies out (as (client, reply) pairs). Knows no socket and no clock."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._waiting: list[_Waiting] = []
        self._rounds: dict[str, _Round] = {}
        self.completed = 0
        """Rounds that are over; the number of the last one."""
        self._published = True
        self.waiting: Waiting = {}
        """As of the last ``publish``; never changed in place, so that other threads may read it."""

    def publish(self) -> None:
        """Shows the rounds that are open now to other threads."""
        if not self._published:
            self.waiting = {
                group: (current.size, frozenset(current.members)) for group, current in self._rounds.items()
            }
            self._published = True

    def handle(self, client: bytes, request: Request, now: float) -> list[tuple[bytes, Reply]]:
        if isinstance(request, Set):
            return self._set(client, request)
        if isinstance(request, Get):
            return self._get(client, request, now)
        return self._exchange(client, request, now)

    def _set(self, client: bytes, request: Set) -> list[tuple[bytes, Reply]]:
        if request.first and request.name in self._values:
            return [(client, Reply(request.id, [self._values[request.name]]))]
        grown = self._bytes + len(request.value) - len(self._values.get(request.name, b""))
        if grown > MAX_TOTAL_BYTES:
            return [(client, Reply(request.id, error=f"the store is full: it holds {MAX_TOTAL_BYTES} bytes at most"))]
        self._values[request.name] = request.value
        self._bytes = grown
        replies = [(client, Reply(request.id, [request.value] if request.first else []))]
        ready = [w for w in self._waiting if request.name in w.request.names and not self._missing(w.request)]
        self._waiting = [w for w in self._waiting if w not in ready]
        return replies + [(w.client, self._found(w.request)) for w in ready]

    def _get(self, client: bytes, request: Get, now: float) -> list[tuple[bytes, Reply]]:
        if not self._missing(request):
            return [(client, self._found(request))]
        self._waiting.append(_Waiting(client, request, now + request.timeout))
        return []

    def _missing(self, request: Get) -> list[str]:
        return [name for name in request.names if name not in self._values]

    def _found(self, request: Get) -> Reply:
        return Reply(request.id, [self._values[name] for name in request.names])

    def _exchange(self, client: bytes, request: Exchange, now: float) -> list[tuple[bytes, Reply]]:
        current = self._rounds.setdefault(request.group, _Round(request.size))
        if request.size != current.size or request.rank >= request.size:
            others = f"ranks {_list(current.members)} said {current.size}" if current.members else "which is too few"
            text = f"rank {request.rank} says that the job has {request.size} ranks, {others}"
            return [(client, Reply(request.id, error=text))]
        self._published = False
        replies = []
        earlier = current.members.get(request.rank)
        if earlier is not None:
            text = f"another process joined as rank {request.rank}"
            replies.append((earlier.client, Reply(earlier.request.id, error=text)))
        current.members[request.rank] = _Member(client, request, now + request.timeout)
        if len(current.members) < current.size:
            return replies
        del self._rounds[request.group]
        self.completed += 1
        values = [current.members[rank].request.value for rank in range(current.size)]
        for member in current.members.values():
            replies.append((member.client, Reply(member.request.id, values, self.completed)))
        return replies

    def expire(self, now: float) -> list[tuple[bytes, Reply]]:
        """Replies to everybody whose deadline has passed."""
        replies = []
        for waiting in [w for w in self._waiting if w.deadline <= now]:
            self._waiting.remove(waiting)
            missing = self._missing(waiting.request)[:64]
            replies.append((waiting.client, Reply(waiting.request.id, error="timeout", missing=missing)))
        for group, current in list(self._rounds.items()):
            missing = [str(rank) for rank in range(current.size) if rank not in current.members]
            for rank, member in [(r, m) for r, m in current.members.items() if m.deadline <= now]:
                self._published = False
                del current.members[rank]
                replies.append((member.client, Reply(member.request.id, error="timeout", missing=missing)))
            if not current.members:
                del self._rounds[group]
        return replies

    def next_deadline(self) -> float:
        """When ``expire`` has to be called next; infinity when nobody waits."""
        deadlines = [w.deadline for w in self._waiting]
        deadlines += [m.deadline for current in self._rounds.values() for m in current.members.values()]
        return min(deadlines, default=math.inf)


def _list(ranks: dict[int, _Member]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _serve(table: _Table, socket: "zmq.Socket[bytes]", gate: _Gate, stop: int) -> None:
    decoder = msgspec.msgpack.Decoder(Request)
    encoder = msgspec.msgpack.Encoder()
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(gate.socket, zmq.POLLIN)
    poller.register(stop, zmq.POLLIN)
    while True:
        left = table.next_deadline() - time.monotonic()
        ready = dict(poller.poll(None if left == math.inf else max(0, math.ceil(left * 1000))))
        if stop in ready:
            break
        replies = []
        if gate.socket in ready:
            gate.answer()
        if socket in ready:
            frames = socket.recv_multipart()
            # A member that sends nonsense is answered with silence. Text that is not UTF-8 is a plain ValueError.
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                replies += table.handle(frames[0], decoder.decode(frames[-1]), time.monotonic())
        replies += table.expire(time.monotonic())
        table.publish()
        for client, reply in replies:
            socket.send_multipart([client, encoder.encode(reply)])
    socket.close(linger=0)
    gate.socket.close(linger=0)
