"""Sets up the connections of one rank. A single loop listens, connects and authenticates, with a single deadline.

``peers.required_links`` defines which connections to form. A peer listens on several addresses, and a ``Dialer``
decides when to try each address. At any time, at most one connection per link can reach the connector's proof. This
connection becomes the link when the acceptor has welcomed it, so both ends choose the same one. If the connector has
not connected after 2.5 seconds or more, the listening rank connects instead, and both ends keep their roles. An
unauthenticated connection is dropped when its handshake fails or takes too long, and delays no other connection. The
loop waits only for the sockets of the handshakes.

States of a connection at both ends:

    dialer: due ──connect──> attempt ──hello, challenge──> proven ──welcome──> link
    listener ────accept────> attempt (unknown peer until its hello) ──> link
    attempt ──refused, too late, another address was faster──> closed; the dialer tries again later
"""

import errno
import functools
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from horovod.common.bootstrap.errors import ADVICE, LinkError, failure_reason, outcome_text, unreachable_text
from horovod.common.bootstrap.peers import CONTROL, DATA, KIND_NAMES, NODE, Link, Peer, Plan, label, required_links
from horovod.common.contract import kernel
from horovod.common.network.connecting import Dialer, Listeners
from horovod.common.network.interfaces import Endpoint, source_address, to_try
from horovod.common.security.auth import Acceptor, AuthError, Connector, Ephemeral, Inviter, Place, Session
from horovod.common.security.cipher import Cipher

# Seconds to wait for a peer's first message.
_HANDSHAKE_SECONDS = 5.0
# Seconds to wait for further messages. The time is long, because hundreds of ranks on few cores are slow.
_BUSY_SECONDS = 20.0
_STRANGERS = 64
# Maximum number of new connections to accept before serving existing ones.
_ACCEPTS = 64
_FULL_PAUSE = 0.05
_CHECK_SECONDS = 0.25
# Fraction of the time limit after which this rank gives up on a silent peer.
_UNREACHABLE = 0.2
# Minimum number of seconds before this rank gives up on a silent peer.
_UNREACHABLE_SECONDS = 6.0
# Seconds after which the listening rank connects to its peer instead of waiting for it.
_REVERSE_SECONDS = 2.5
_REVERSE_SECONDS_A_LINK = 0.1
_UNIX = "its Unix socket"
_INVITED = "its own connection"

Target = Endpoint | str


class _Attempt:
    """A connection whose handshake is not yet complete."""

    def __init__(self, sock: socket.socket, side: Connector | Acceptor, deadline: float) -> None:
        self.sock = sock
        self.side = side
        self.deadline = deadline
        self.link: Link | None = None  # link to form, or None until the peer of an incoming connection is known
        self.target: Target = ""
        self.connected = False


class MeshBuilder:
    """Builder of all links of one rank. Call ``run`` exactly once."""

    def __init__(
        self,
        plan: Plan,
        peers: Sequence[Peer] | Mapping[int, Peer],
        key: bytes,
        epoch: int,
        listeners: Listeners,
        cipher: Cipher | None = None,
        encrypted: Sequence[int] = (),
        kinds: Sequence[int] = (NODE, CONTROL, DATA),
    ) -> None:
        """Create the mesh builder of a rank.

        Args:
            plan: This rank's view of the job.
            peers: Records of this rank and of the ranks to which it connects.
            key: Key that authenticates links.
            epoch: Number of the epoch.
            listeners: Listening sockets of this rank.
            cipher: Cipher of encrypted links.
            encrypted: Kinds of links to encrypt.
            kinds: Kinds of links to establish now.
        """
        self.sessions: dict[Link, Session] = {}
        """Session keys of the encrypted links that are formed."""
        self._cipher = cipher
        self._encrypted = encrypted
        self._plan = plan
        self._peers = peers
        self._key = key
        self._epoch = epoch
        self._listeners = listeners
        self._selector = selectors.DefaultSelector()
        self._links: dict[Link, socket.socket] = {}
        self._attempts: dict[_Attempt, None] = {}  # connection attempts, oldest first
        self._kinds = kinds
        self._outgoing, self._incoming = required_links(plan, kinds)
        self._dialers: dict[Link, Dialer[Target]] = {}
        # By link, the connection on which this rank has authenticated itself and waits for the welcome message.
        self._proven: dict[Link, _Attempt] = {}
        # All invitations received so far, kept to detect replays.
        self._invitations: set[bytes] = set()
        self._next_due = 0.0
        self._next_check = 0.0

    def run(self, seconds: float, check: Callable[[], None]) -> dict[Link, socket.socket]:
        """Establish all links, and return their authenticated, non-blocking sockets by (kind, rank).

        Args:
            seconds: Time limit in seconds.
            check: Function called regularly. It must not block, and can raise an error to give up.

        Raises:
            LinkError: If links are missing after ``seconds``. The message names them. If no address of a peer answers,
                the error is raised earlier (after 6 of 30 seconds). All sockets are closed.
        """
        begin = time.monotonic()
        patience = min(seconds, max(_UNREACHABLE_SECONDS, seconds * _UNREACHABLE))
        try:
            for listener in self._listening():
                self._selector.register(listener, selectors.EVENT_READ, None)
            self._prepare(begin)
            while len(self._links) < len(self._outgoing) + len(self._incoming):
                now = time.monotonic()
                if now >= begin + seconds:
                    raise LinkError(self._describe_missing(seconds))
                self._step(begin + seconds, check)
                self._give_up_hopeless(patience)
        except BaseException:
            for sock in self._links.values():
                sock.close()
            raise
        finally:
            for attempt in self._attempts:
                attempt.sock.close()
            self._selector.close()
        return self._links

    def _listening(self) -> list[socket.socket]:
        """Return the listening sockets for links not yet formed. Connections on other sockets wait in the backlog."""
        sockets = [self._listeners.unix] if NODE in self._kinds else []
        return sockets + (self._listeners.tcp if CONTROL in self._kinds or DATA in self._kinds else [])

    def _ephemeral(self, kind: int) -> Ephemeral | None:
        return self._cipher.ephemeral() if self._cipher is not None and kind in self._encrypted else None

    def _prepare(self, now: float) -> None:
        routes = functools.cache(source_address)
        me = self._peers[self._plan.me]
        # Time to wait for peers to connect before this rank connects to them. It grows with the number of links,
        # because hundreds of ranks on few cores are slow and additional connections would slow them further.
        patience = max(_REVERSE_SECONDS, _REVERSE_SECONDS_A_LINK * len(self._incoming))
        for link in self._outgoing:
            if link[0] == NODE:
                self._dialers[link] = Dialer([_UNIX], now)
        for kind, rank in [*self._outgoing, *self._incoming]:
            if kind != NODE:
                peer = self._peers[rank]
                targets: list[Target] = [*to_try(me.endpoints, peer.endpoints, peer.network == me.network, routes)]
                later = patience if (kind, rank) in self._incoming else 0.0
                self._dialers[kind, rank] = Dialer(targets, now + later)

    def _step(self, deadline: float, check: Callable[[], None]) -> None:
        self._dial()
        until = min(self._next_due, time.monotonic() + _CHECK_SECONDS, deadline)
        events = self._selector.select(max(0.0, until - time.monotonic()))
        for key, _ in events:
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]
            elif key.data in self._attempts:  # an earlier event in this loop may have dropped the attempt
                self._advance(key.data)
        now = time.monotonic()
        for attempt in [a for a in self._attempts if a.deadline <= now]:
            self._fail(attempt, "connected, but no answer" if attempt.connected else "no answer", silent=True)
        # Check deadlines even under a constant stream of events, for example from unknown peers.
        if not events or now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            check()

    def _dial(self) -> None:
        now = time.monotonic()
        if now < self._next_due:
            return
        missing = [each for each in self._dialers.items() if each[0] not in self._links and each[0] not in self._proven]
        for link, dialer in missing:
            for target in dialer.due(now):
                self._connect(link, target)
        self._next_due = min((dialer.next_due() for _, dialer in missing), default=float("inf"))

    def _give_up_hopeless(self, patience: float) -> None:
        now = time.monotonic()
        for link in self._outgoing:
            if link not in self._links and self._dialers[link].hopeless(now, patience):
                raise LinkError(f"no {self._describe(link)}{ADVICE if link[0] != NODE else ''}")

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            # The peer closed the connection, or this process ran out of file descriptors. Retry until the deadline.
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    # The socket stays readable while this process has no free descriptor. Pause to avoid a busy loop.
                    time.sleep(_FULL_PAUSE)
                return
            if listener is self._listeners.unix and kernel.peer_user(sock) != os.geteuid():
                sock.close()
                continue
            self._make_place()
            self._begin(sock, Acceptor(self._key, self._epoch, self._plan.me, self._ephemeral))

    def _make_place(self) -> None:
        """Drop one incoming attempt if there are too many.

        Attempts form two groups: those that have sent a hello, and silent ones. The oldest attempt of the larger group
        is dropped, so a flood in one group does not displace the other group.
        """
        unknown = [a for a in self._attempts if a.link is None]
        if len(unknown) < 2 * len(self._incoming) + _STRANGERS:
            return
        silent: list[_Attempt] = []
        greeted: list[_Attempt] = []
        for attempt in unknown:
            side = attempt.side
            (greeted if isinstance(side, Acceptor) and side.greeted else silent).append(attempt)
        self._fail(max(silent, greeted, key=len)[0], "too many connections")

    def _connect(self, link: Link, target: Target) -> None:
        kind, rank = link
        where: str | tuple[str, int]
        if isinstance(target, Endpoint):
            family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
            where = (target.address, target.port)
        else:
            family, where = socket.AF_UNIX, "\0horovod-" + self._peers[rank].unix_name
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            code = sock.connect_ex(where)
        except OSError as error:  # connecting fails at once if no descriptor is free or this host has no IPv6
            self._failed(link, target, error.strerror or str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._failed(link, target, failure_reason(OSError(code, os.strerror(code))))
            return
        if link in self._outgoing:
            side: Connector | Acceptor = Connector(
                self._key, Place(kind, self._epoch, self._plan.me, rank), self._ephemeral
            )
        else:
            side = Inviter(self._key, Place(kind, self._epoch, rank, self._plan.me), self._ephemeral)
        attempt = self._begin(sock, side)
        attempt.link, attempt.target = link, target

    def _begin(self, sock: socket.socket, side: Connector | Acceptor) -> _Attempt:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        attempt = _Attempt(sock, side, time.monotonic() + _HANDSHAKE_SECONDS)
        self._attempts[attempt] = None
        self._selector.register(sock, selectors.EVENT_WRITE if side.outgoing else selectors.EVENT_READ, attempt)
        return attempt

    def _advance(self, attempt: _Attempt) -> None:
        side = attempt.side
        try:
            if side.outgoing:
                side.outgoing = side.outgoing[attempt.sock.send(side.outgoing) :]
                self._note_contact(attempt)
            elif side.bytes_wanted:
                data = attempt.sock.recv(side.bytes_wanted)
                if not data:
                    raise AuthError("another program answered and closed the connection")
                side.feed(data)
        except BlockingIOError:
            return
        except (AuthError, OSError) as error:
            self._fail(attempt, failure_reason(error))
            return
        if not self._may_go_on(attempt):
            return
        if side.complete and not side.outgoing:
            self._complete(attempt)
        else:
            self._selector.modify(
                attempt.sock, selectors.EVENT_WRITE if side.outgoing else selectors.EVENT_READ, attempt
            )

    def _note_contact(self, attempt: _Attempt) -> None:
        if attempt.link and attempt.target not in ("", _INVITED) and not attempt.connected:
            attempt.connected = True
            attempt.deadline = max(attempt.deadline, time.monotonic() + _BUSY_SECONDS)
            self._dialers[attempt.link].connected(attempt.target, time.monotonic())

    def _may_go_on(self, attempt: _Attempt) -> bool:
        """Continue the handshake after processing a message. Return False if the attempt is over."""
        side = attempt.side
        if isinstance(side, Connector):
            if side.proven and self._proven.get(_key_of(attempt)) is not attempt:
                return self._prove(attempt)
        elif side.complete:
            return self._admit(attempt)
        elif side.outgoing:  # the peer has sent a valid hello message, so give it more time
            attempt.deadline = max(attempt.deadline, time.monotonic() + _BUSY_SECONDS)
        return True

    def _prove(self, attempt: _Attempt) -> bool:
        """Reserve the link for this connection attempt before it sends the authentication proof.

        At most one of several attempts to establish the same link sends a proof.
        """
        link = _key_of(attempt)
        if link in self._links or link in self._proven:
            self._fail(attempt, "another address was faster")
            return False
        self._proven[link] = attempt
        attempt.deadline = float("inf")  # from now on, only the peer limits how long authentication can take
        self._drop_rivals(attempt)
        return True

    def _admit(self, attempt: _Attempt) -> bool:
        """Decide whether to accept a connection. Called before the welcome message is sent."""
        side = attempt.side
        assert isinstance(side, Acceptor)
        place = side.invited or side.place
        link = (place.purpose, place.source)
        taken = link in self._links or link in self._proven
        fits = link in (self._outgoing if side.invited else self._incoming) and attempt.link in (None, link)
        if not fits or taken or (attempt.sock.family == socket.AF_UNIX) != (link[0] == NODE):
            self._fail(attempt, "not expected here")
            return False
        if side.invited and not self._may_invite(side, link):
            self._fail(attempt, "invited already")
            return False
        attempt.link = link
        return True

    def _may_invite(self, side: Acceptor, link: Link) -> bool:
        """Return True if the invitation is new and no other invitation for this link is in progress.

        Any process can record and resend a peer's invitation. Repeated invitations are therefore rejected.
        """
        if side.invitation in self._invitations:
            return False
        self._invitations.add(side.invitation)
        return not any(a.link == link and a.target == _INVITED for a in self._attempts)

    def _drop_rivals(self, winner: _Attempt) -> None:
        for rival in [a for a in self._attempts if a.link == winner.link and a is not winner]:
            self._fail(rival, "another address was faster")

    def _complete(self, attempt: _Attempt) -> None:
        side = attempt.side
        link = _key_of(attempt)
        if isinstance(side, Acceptor) and side.invited:
            self._follow(attempt)
            return
        self._forget(attempt)
        self._links[link] = attempt.sock
        if self._cipher is not None and link[0] in self._encrypted:
            self.sessions[link] = side.session
        self._drop_rivals(attempt)

    def _follow(self, attempt: _Attempt) -> None:
        """Redo the handshake on an accepted connection with swapped roles: this rank acts as the connecting side."""
        kind, rank = _key_of(attempt)
        attempt.target = _INVITED
        attempt.side = Connector(self._key, Place(kind, self._epoch, self._plan.me, rank), self._ephemeral)
        self._selector.modify(attempt.sock, selectors.EVENT_WRITE, attempt)

    def _fail(self, attempt: _Attempt, reason: str, silent: bool = False) -> None:
        self._forget(attempt)
        attempt.sock.close()
        self._failed(attempt.link, attempt.target, reason, silent)

    def _failed(self, link: Link | None, target: Target, reason: str, silent: bool = False) -> None:
        if link is None or target in ("", _INVITED):
            return  # the peer opened the connection, so this rank cannot retry it
        dialer = self._dialers[link]
        dialer.failed(target, reason, time.monotonic(), silent)
        self._next_due = min(self._next_due, dialer.next_due())

    def _forget(self, attempt: _Attempt) -> None:
        del self._attempts[attempt]
        if attempt.link is not None and self._proven.get(attempt.link) is attempt:
            del self._proven[attempt.link]
        self._selector.unregister(attempt.sock)

    def _describe(self, link: Link) -> str:
        kind, rank = link
        peer = self._peers[rank]
        text = f"{KIND_NAMES[kind]} connection {'from' if link in self._incoming else 'to'} {label(rank, peer)}"
        if link in self._incoming:
            return text
        tried = [outcome_text(target, outcome) for target, outcome in self._dialers[link].outcomes()]
        text += f" at {'; '.join(tried)}" if tried else f", {unreachable_text(peer)}"
        return text if kind == NODE else f"{text}; and none came from there"

    def _describe_missing(self, seconds: float) -> str:
        missing = [link for link in [*self._outgoing, *self._incoming] if link not in self._links]
        more = f", and {len(missing) - 8} more" if len(missing) > 8 else ""
        return f"waited {seconds:g} s for {', and for '.join(map(self._describe, missing[:8]))}{more}"


def _key_of(attempt: _Attempt) -> Link:
    assert attempt.link is not None
    return attempt.link
