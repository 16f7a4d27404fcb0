"""Forms a rank's connections to its peers: listens, connects and authenticates all of them in one loop with one
deadline.

    node      Unix socket, rank -> its node's leader; carries the shared memory's descriptors, then is the control link
    control   TCP, leader of a node -> rank 0
    data      TCP, between every two ranks on different nodes; the lower rank listens

A stranger that connects is dropped when its handshake fails or takes too long, and hinders nobody.
"""

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence

from horovod.common.auth import Acceptor, AuthError, Connector, Place
from horovod.common.peers import Peer, Plan, label

NODE, CONTROL, DATA = 1, 2, 3
_KINDS = {NODE: "node", CONTROL: "control", DATA: "data"}

_HANDSHAKE_SECONDS = 5.0
_STRANGERS = 64
_RETRY_SECONDS = 0.05
_CHECK_SECONDS = 0.25

Link = tuple[int, int]  # (kind, rank at the other end)


class LinkError(Exception):
    """The connections could not be formed; says which, and why."""


class Listeners:
    """A rank's two listening sockets, open while the job is formed."""

    def __init__(self, address: str, backlog: int) -> None:
        """Raises ValueError naming the address when it cannot be used."""
        self.unix_name = os.urandom(16).hex()
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.tcp = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self.unix.bind("\0horovod-" + self.unix_name)
            self.tcp.bind((address, 0))
            for sock in (self.unix, self.tcp):
                sock.listen(backlog)
                sock.setblocking(False)
        except OSError as error:
            self.close()
            raise ValueError(f"cannot listen on {address!r}: {error.strerror}") from None
        self.address = address
        self.port: int = self.tcp.getsockname()[1]

    def close(self) -> None:
        """May be called again."""
        self.unix.close()
        self.tcp.close()


class _Attempt:
    """A connection whose handshake is not complete."""

    def __init__(self, sock: socket.socket, side: Connector | Acceptor, goal: Link | None, deadline: float) -> None:
        self.sock = sock
        self.side = side
        self.goal = goal  # None: someone connected to us
        self.deadline = deadline


class Former:
    """Forms all links of one rank. Use ``run`` once."""

    def __init__(self, plan: Plan, peers: Sequence[Peer], key: bytes, epoch: int, listeners: Listeners) -> None:
        self._plan = plan
        self._peers = peers
        self._key = key
        self._epoch = epoch
        self._listeners = listeners
        self._selector = selectors.DefaultSelector()
        self._links: dict[Link, socket.socket] = {}
        self._attempts: list[_Attempt] = []
        self._retries: list[tuple[float, Link]] = []
        self._last_error: dict[Link, str] = {}
        self._next_check = 0.0
        self._outgoing, self._incoming = _wanted(plan)

    def run(self, seconds: float, check: Callable[[], None]) -> dict[Link, socket.socket]:
        """The authenticated sockets, non-blocking, by (kind, rank). ``check`` is called now and then and may raise to
        give up.

        Raises LinkError naming what is missing after ``seconds``. Nothing stays open after an error.
        """
        deadline = time.monotonic() + seconds
        try:
            self._selector.register(self._listeners.unix, selectors.EVENT_READ, None)
            self._selector.register(self._listeners.tcp, selectors.EVENT_READ, None)
            for link in self._outgoing:
                self._connect(link)
            while len(self._links) < len(self._outgoing) + len(self._incoming):
                if time.monotonic() >= deadline:
                    raise LinkError(self._describe_missing(seconds))
                self._step(deadline, check)
        except BaseException:
            for sock in self._links.values():
                sock.close()
            raise
        finally:
            for attempt in self._attempts:
                attempt.sock.close()
            self._selector.close()
        return self._links

    def _step(self, deadline: float, check: Callable[[], None]) -> None:
        events = self._selector.select(min(_RETRY_SECONDS if self._retries else _CHECK_SECONDS, _left(deadline)))
        for key, _ in events:
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]
            elif key.data in self._attempts:  # not dropped by an event before it
                self._advance(key.data)
        now = time.monotonic()
        for attempt in [a for a in self._attempts if a.deadline <= now]:
            self._fail(attempt, "no answer during the handshake")
        due = [link for when, link in self._retries if when <= now]
        self._retries = [entry for entry in self._retries if entry[0] > now]
        for link in due:
            self._connect(link)
        if not events or now >= self._next_check:  # strangers, or a listener that cannot accept, make events for ever
            self._next_check = now + _CHECK_SECONDS
            check()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the connection is gone again, or descriptors ran out: the deadline will tell
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(_RETRY_SECONDS)  # the listener stays readable
                return
            incoming = [a for a in self._attempts if a.goal is None]
            if len(incoming) >= len(self._incoming) + _STRANGERS:
                self._fail(incoming[0], "too many connections")
            if listener is self._listeners.unix and _peer_uid(sock) != os.geteuid():
                sock.close()
                continue
            self._begin(sock, Acceptor(self._key, self._epoch, self._plan.me), None)

    def _connect(self, link: Link) -> None:
        kind, rank = link
        peer = self._peers[rank]
        where: str | tuple[str, int]
        if kind == NODE:
            family, where = socket.AF_UNIX, "\0horovod-" + peer.unix_name
        else:
            family, where = socket.AF_INET6 if ":" in peer.address else socket.AF_INET, (peer.address, peer.port)
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        code = sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._retry(link, os.strerror(code))
            return
        place = Place(kind, self._epoch, self._plan.me, rank)
        self._begin(sock, Connector(self._key, place), link)

    def _begin(self, sock: socket.socket, side: Connector | Acceptor, goal: Link | None) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        attempt = _Attempt(sock, side, goal, time.monotonic() + _HANDSHAKE_SECONDS)
        self._attempts.append(attempt)
        self._selector.register(sock, selectors.EVENT_WRITE if side.outgoing else selectors.EVENT_READ, attempt)

    def _advance(self, attempt: _Attempt) -> None:
        side = attempt.side
        try:
            if side.outgoing:
                side.outgoing = side.outgoing[attempt.sock.send(side.outgoing) :]
            elif side.wanted:
                data = attempt.sock.recv(side.wanted)
                if not data:
                    raise AuthError("the other side closed the connection")
                side.feed(data)
        except BlockingIOError:
            return
        except (AuthError, OSError) as error:
            self._fail(attempt, getattr(error, "strerror", None) or str(error))
            return
        if side.done and not side.outgoing:
            self._complete(attempt)
        else:
            self._selector.modify(
                attempt.sock, selectors.EVENT_WRITE if side.outgoing else selectors.EVENT_READ, attempt
            )

    def _complete(self, attempt: _Attempt) -> None:
        link = attempt.goal
        if isinstance(attempt.side, Acceptor):
            link = (attempt.side.place.purpose, attempt.side.place.source)
            over_unix = attempt.sock.family == socket.AF_UNIX
            if link not in self._incoming or link in self._links or over_unix != (link[0] == NODE):
                self._fail(attempt, "not expected here")
                return
        assert link is not None
        self._forget(attempt)
        self._links[link] = attempt.sock

    def _fail(self, attempt: _Attempt, reason: str) -> None:
        self._forget(attempt)
        attempt.sock.close()
        if attempt.goal is not None:
            self._retry(attempt.goal, reason)

    def _retry(self, link: Link, reason: str) -> None:
        self._last_error[link] = reason
        self._retries.append((time.monotonic() + _RETRY_SECONDS, link))

    def _forget(self, attempt: _Attempt) -> None:
        self._attempts.remove(attempt)
        self._selector.unregister(attempt.sock)

    def _describe_missing(self, seconds: float) -> str:
        missing = [link for link in [*self._outgoing, *self._incoming] if link not in self._links]
        texts = []
        for kind, rank in missing[:8]:
            peer = self._peers[rank]
            text = f"{_KINDS[kind]} connection {'to' if (kind, rank) in self._outgoing else 'from'} {label(rank, peer)}"
            if (kind, rank) in self._outgoing:
                text += f" at {peer.address}:{peer.port}" if kind != NODE else ""
                text += f": {self._last_error[kind, rank]}" if (kind, rank) in self._last_error else ""
            texts.append(text)
        more = f", and {len(missing) - 8} more" if len(missing) > 8 else ""
        return f"waited {seconds:g} s for {'; '.join(texts)}{more}"


def _wanted(plan: Plan) -> tuple[list[Link], list[Link]]:
    """(links that I connect, links that others connect to me)."""
    outgoing = [(DATA, rank) for rank in plan.remote if rank < plan.me]
    incoming = [(DATA, rank) for rank in plan.remote if rank > plan.me]
    incoming += [(NODE, rank) for rank in plan.local_children] + [(CONTROL, rank) for rank in plan.remote_children]
    if plan.parent >= 0:
        outgoing.append((CONTROL if plan.leads else NODE, plan.parent))
    return outgoing, incoming


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _peer_uid(sock: socket.socket) -> int:
    credentials = struct.Struct("3i")  # pid, uid, gid
    uid: int = credentials.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))[1]
    return uid
