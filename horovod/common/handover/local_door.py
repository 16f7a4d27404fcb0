"""How the ranks of one host get the job's key from rank 0: at an abstract Unix socket, of which each side knows that
the other is a process of this user (``same_user``), or, where the user gives a key, that it has that key.

Its name is random, so nobody can take it before, and followers find it in the kernel's list of sockets. Others may put
names there that begin alike: such a socket is asked who it is, and left.

    follower -> rank 0   nonce F
    rank 0 -> follower   nonce Z, F
    follower -> rank 0   Z
    rank 0 -> follower   what it gives

Each side believes the other's answer by its sender, which the kernel tells. With a key there is the handshake of
``auth`` in place of these messages.
"""

import contextlib
import hashlib
import hmac
import os
import random
import re
import secrets
import socket
import time

from horovod.common.contract.secret import Secret
from horovod.common.handover import same_user
from horovod.common.handover.door import Door, read_all
from horovod.common.handover.same_user import NONCE, Peer
from horovod.common.security import auth
from horovod.common.security.auth import AuthError, derive_key

_PLACE = auth.Place(purpose=0, epoch=0, source=1, target=0)  # no rank: who has the key may come in
_PATIENCE, _MOST_PATIENCE = 0.5, 5.0  # s for who lets us wait, at first and at most
_LEAST = 0.05
_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_LISTENS = 0x10000  # in the list of sockets
# Of which the third word are the flags and what follows the inode is the name, for abstract ones "@" and what its maker
# likes, line ends included: so a line can be anything.
_LINE = re.compile(r"(?:\S+ ){3}([0-9A-F]{8}) [0-9A-F]+ [0-9A-F]+ +[0-9]+ @(.*)")
_GIVE = (
    "where the kernel cannot vouch for the ranks, as in different containers, give all of them one key: "
    "HOROVOD_KEY_FILE=FILE with a file of mode 0600"
)


def open_local(job: str, payload: bytes, key: bytes | None = None) -> Door:
    """Gives ``payload`` to the ranks of ``job`` on this host that belong to this user; with ``key``, to those that have
    it. Raises OSError, and AuthError when this process cannot be told from those of other users.
    """
    if key is None:
        _check_self()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        same_user.tell_senders(sock)
        sock.bind(f"\0{_start_of_name(job, key)}{secrets.token_hex(16)}")
        sock.listen(128)
    except OSError:
        sock.close()
        raise

    def begin(peer: socket.socket) -> "_Guest | _GuestWithKey | None":
        with contextlib.suppress(AuthError, OSError):
            return _GuestWithKey(key, payload) if key is not None else _Guest(Peer(peer), payload)
        return None

    return Door([sock], begin)


class _Guest:
    """The side of rank 0."""

    def __init__(self, peer: Peer, payload: bytes) -> None:
        self.outgoing = b""
        self._peer = peer
        self._payload = payload
        self._nonce = same_user.nonce()
        self._asked = False
        self._incoming = b""

    @property
    def wanted(self) -> int:
        return NONCE - len(self._incoming) if self._payload else 0

    def receive(self, sock: socket.socket) -> None:
        self._incoming += _receive_from(sock, self.wanted, self._peer)
        if self.wanted:
            return
        message, self._incoming = self._incoming, b""
        if not self._asked:
            self._asked = True
            self.outgoing = self._nonce + message
        elif hmac.compare_digest(message, self._nonce):
            self.outgoing, self._payload = self._payload, b""
        else:
            raise AuthError("a wrong answer")

    def close(self) -> None:
        self._peer.close()


class _GuestWithKey:
    """The same for one who has the key."""

    def __init__(self, key: bytes, payload: bytes) -> None:
        self.outgoing = b""
        self._payload = payload
        self._side = auth.Acceptor(key, _PLACE.epoch, _PLACE.target)

    @property
    def wanted(self) -> int:
        return self._side.wanted

    def receive(self, sock: socket.socket) -> None:
        data = sock.recv(self.wanted)
        if not data:
            raise AuthError("it has hung up")
        self._side.feed(data)
        self.outgoing, self._side.outgoing = self._side.outgoing, b""
        if self._side.done:
            self.outgoing += self._payload

    def close(self) -> None:
        pass


def knock_local(job: str, seconds: float, key: bytes | None = None) -> bytes:
    """What ``open_local`` gives, waiting for it. Raises AuthError that says what there is instead, if anything, when it
    did not open.
    """
    if key is None:
        _check_self()
    deadline = time.monotonic() + seconds
    pause, patience, trouble = _PAUSE, _PATIENCE, ""
    while True:
        for name in _doors(_start_of_name(job, key)):
            try:
                data = _visit(name, max(_LEAST, min(patience, deadline - time.monotonic())), key)
                if data:
                    return data
            except AuthError as error:
                trouble = f": {error} listens in its place; {_GIVE}"
            except OSError:  # it has just been closed, or keeps us waiting
                pass
            if time.monotonic() >= deadline:  # others may have put many there that keep us waiting
                break
        if time.monotonic() >= deadline:
            raise AuthError(f"its socket on this host did not appear{trouble}")
        time.sleep(pause)
        pause, patience = min(2 * pause, _LONGEST_PAUSE), min(2 * patience, _MOST_PATIENCE)


def _check_self() -> None:
    try:
        same_user.check_self()
    except AuthError as error:
        raise AuthError(f"{error}; {_GIVE}") from None


def _visit(name: str, seconds: float, key: bytes | None) -> bytes:
    """Raises AuthError when who listens is none of us."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as at_end:
        sock = at_end.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        same_user.tell_senders(sock)
        sock.settimeout(seconds)
        sock.connect("\0" + name)
        if key is not None:
            auth.connect(sock, key, _PLACE, seconds)
        else:
            peer = at_end.enter_context(contextlib.closing(Peer(sock)))
            _ask(sock, peer, deadline)
        return Secret(read_all(sock, max(_LEAST, deadline - time.monotonic())))


def _ask(sock: socket.socket, peer: Peer, deadline: float) -> None:
    mine = same_user.nonce()
    sock.sendall(mine)
    answer = b""
    while len(answer) < 2 * NONCE:
        sock.settimeout(max(_LEAST, deadline - time.monotonic()))
        answer += _receive_from(sock, 2 * NONCE - len(answer), peer)
    if not hmac.compare_digest(answer[NONCE:], mine):
        raise AuthError("a process that answers wrongly")
    sock.sendall(answer[:NONCE])


def _receive_from(sock: socket.socket, count: int, peer: Peer) -> bytes:
    """Raises AuthError when somebody else has sent it."""
    data, sender = same_user.receive(sock, count)
    if not data or sender is None:
        raise AuthError("a process that hangs up")
    peer.confirm(sender)
    return data


def _start_of_name(job: str, key: bytes | None) -> str:
    """What followers know of it: no secret, it only keeps jobs apart."""
    digest = (
        hashlib.sha256(f"{os.geteuid()}/{job}".encode()).digest() if key is None else derive_key(key, f"door {job}")
    )
    return f"horovod-meet-{digest[:16].hex()}-"


def _doors(start: str) -> list[str]:
    """Names of listening sockets that begin so, in any order: nobody can be before the right one for ever."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        found = [_LINE.fullmatch(line.rstrip("\n")) for line in file if f"@{start}" in line]
    names = [line[2] for line in found if line and line[2].startswith(start) and int(line[1], 16) & _LISTENS]
    random.shuffle(names)
    return names
