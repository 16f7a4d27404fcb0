"""Mutual authentication of two ranks on a new stream connection (TCP or Unix), before any other data is sent.

The protocol is challenge-response with HMAC-SHA256 under the job's key. Every message has a fixed length, and its
receiver reads it completely before examining it:

    connector -> acceptor   hello      magic, purpose, cipher, epoch, connector's rank, acceptor's rank, nonce C
    acceptor  -> connector  challenge  nonce A, HMAC("accept",  hello | nonce A)
    connector -> acceptor   proof      HMAC("connect", hello | nonce A | challenge's HMAC)
    acceptor  -> connector  welcome    HMAC("welcome", hello | proof)

Both nonces are fresh, so recorded messages are not accepted again. The labels prevent the use of one side's answer as
the other side's answer. The MAC covers purpose, epoch and both ranks, so a handshake for one connection is not valid
for another. It also covers the version of the handshake (in the magic) and the cipher of the connection, so an attacker
in the middle cannot change them. The welcome shows the connector that the acceptor has not given up in the meantime.

Both sides then have the same ``Session``: one key for each direction of this connection. The engine encrypts with these
keys, which are derived by HKDF from the job's key and all messages. With an ``Ephemeral`` on both sides, the nonces are
public keys made for this connection, and their shared secret (X25519) becomes part of the session. An attacker who
records the connection and learns the job's key later can then not read it.

A firewall might allow connections only from the acceptor to the connector. Then the acceptor opens the connection and
first sends an invitation. The roles are otherwise as above:

    acceptor  -> connector  invitation magic, purpose | 128, 0, epoch, acceptor's rank, connector's rank, nonce I,
                                       HMAC("invite", all this)

docs/wire.md describes each byte, with examples.

``Connector``, ``Acceptor`` and ``Inviter`` perform no I/O, so that one thread can drive many of them: send
``outgoing``, feed received data, and repeat until ``complete``. ``connect`` and ``accept`` drive one handshake over a
blocking socket.
"""

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from horovod.common.contract.private_files import Secret

_HELLO = struct.Struct("<4sBBxxQII32s")
_MAGIC = b"HVD2"  # the last byte of the magic number is the handshake's version
_NONCE = 32
_MAC = 32
_INVITATION = 0x80


class AuthError(Exception):
    """Raised if the peer cannot prove that it is the expected rank of this job."""


@dataclass(frozen=True)
class Place:
    """Identifies a connection by its purpose (0 to 127), its epoch and its ranks.

    ``source`` is the rank that connects, ``target`` the rank that accepts.
    """

    purpose: int
    epoch: int
    source: int
    target: int


@dataclass(frozen=True)
class Session:
    """Session keys of one connection, 32 bytes for each direction."""

    send: bytes = field(repr=False)
    receive: bytes = field(repr=False)


@dataclass(frozen=True)
class Ephemeral:
    """Ephemeral key pair (X25519) for one connection."""

    public: bytes
    """Public key, 32 bytes."""
    agree: Callable[[bytes], bytes] = field(repr=False)
    """Function that returns the secret shared with another public key's owner. Raises ValueError for an invalid key."""
    cipher: int = 0
    """Number of the connection's cipher (``cipher.NAMES``, from 1), or 0 without encryption."""


Ephemerals = Callable[[int], Ephemeral | None]
"""Function that returns a new key pair for a purpose, or None for random nonces. Both sides must agree."""


def _no_ephemeral(purpose: int) -> None:
    return None


def derive_key(job_key: bytes, label: str) -> Secret:
    """Derive a 32-byte key for a single purpose (HKDF, RFC 5869).

    The key reveals neither the job key nor keys for other purposes.
    """
    secret = Secret(hmac.digest(b"horovod job key", job_key, "sha256"))
    return Secret(hmac.digest(secret, label.encode() + b"\x01", "sha256"))


def _mac(key: bytes, label: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, label + b"\x00" + b"".join(parts), hashlib.sha256)


class _Side:
    def __init__(self, key: bytes) -> None:
        self.outgoing = b""
        """Bytes to send. The caller sends and removes them."""
        self.complete = False
        self._key = key
        self._ephemeral: Ephemeral | None = None
        self._incoming = b""
        self._need = 0
        self._keys: tuple[bytes, bytes] | None = None

    @property
    def bytes_wanted(self) -> int:
        """Maximum number of bytes to read from the socket for the handshake. Later bytes belong to the link."""
        return 0 if self.complete else self._need - len(self._incoming)

    def _make_nonce(self, ephemeral: Ephemeral | None) -> tuple[int, bytes]:
        """Return the cipher's number and the nonce for this side's next message."""
        self._ephemeral = ephemeral
        return (0, secrets.token_bytes(_NONCE)) if ephemeral is None else (ephemeral.cipher, ephemeral.public)

    def _agree(self, transcript: bytes, their_nonce: bytes) -> None:
        """Derive the two session keys from the handshake's transcript. The first one is the connector's key."""
        secret = b""
        if self._ephemeral is not None:
            try:
                secret = Secret(self._ephemeral.agree(their_nonce))
            except ValueError as error:
                raise AuthError(str(error)) from None
        root = Secret(hmac.digest(hashlib.sha256(transcript).digest(), Secret(self._key + secret), "sha256"))
        there, back = (Secret(hmac.digest(root, label + b"\x01", "sha256")) for label in (b"connector", b"acceptor"))
        self._keys = there, back

    def feed(self, data: bytes) -> None:
        """Process at most ``bytes_wanted`` received bytes. Raises AuthError if the peer fails authentication."""
        if len(data) > self.bytes_wanted:
            raise AuthError("more data than the handshake has")
        self._incoming += data
        if len(self._incoming) == self._need:
            message, self._incoming = self._incoming, b""
            self._receive(message)

    def _receive(self, message: bytes) -> None:
        raise NotImplementedError


class Connector(_Side):
    """The handshake, on the side that opened the connection."""

    def __init__(self, key: bytes, place: Place, ephemerals: Ephemerals = _no_ephemeral) -> None:
        super().__init__(key)
        cipher, nonce = self._make_nonce(ephemerals(place.purpose))
        self._hello = _HELLO.pack(_MAGIC, place.purpose, cipher, place.epoch, place.source, place.target, nonce)
        self.outgoing = self._hello
        self._need = _NONCE + _MAC
        self._welcome = b""

    @property
    def proven(self) -> bool:
        """True if the acceptor is authenticated and only its welcome message is pending."""
        return self._keys is not None

    @property
    def session(self) -> Session:
        """Session keys of the connection, available when ``complete`` is True."""
        if not self.complete or self._keys is None:
            raise AuthError("the handshake is not complete")
        return Session(send=self._keys[0], receive=self._keys[1])

    def _receive(self, message: bytes) -> None:
        if self.proven:
            if not hmac.compare_digest(message, self._welcome):
                raise AuthError("the other side does not know the job's key")
            self.complete = True
            return
        nonce, mac = message[:_NONCE], message[_NONCE:]
        if not hmac.compare_digest(mac, _mac(self._key, b"accept", self._hello, nonce)):
            raise AuthError("the other side does not know the job's key")
        proof = _mac(self._key, b"connect", self._hello, nonce, mac)
        self._agree(self._hello + message + proof, nonce)
        self._welcome = _mac(self._key, b"welcome", self._hello, proof)
        self.outgoing += proof
        self._need = _MAC


class Acceptor(_Side):
    """The handshake, on the side that accepted the connection.

    The hello message contains the peer's rank and purpose.
    """

    def __init__(self, key: bytes, epoch: int, rank: int, ephemerals: Ephemerals = _no_ephemeral) -> None:
        super().__init__(key)
        self._ephemerals = ephemerals
        self._epoch = epoch
        self._rank = rank
        self._need = _HELLO.size
        self._expected = b""
        self._transcript = b""
        self._claimed: Place | None = None
        self.invitation = b""
        """Message of an ``Inviter``, valid when ``complete`` is True."""
        self.invited: Place | None = None
        """Place (purpose, epoch and ranks) in the invitation.

        Valid if ``complete`` is True and the other side (its ``source``) is an ``Inviter``. The next handshake on the
        connection uses a ``Connector`` for this place with source and target exchanged.
        """

    @property
    def greeted(self) -> bool:
        """True if a well-formed hello message has arrived. It is not authenticated yet."""
        return self._claimed is not None or bool(self.invitation)

    @property
    def place(self) -> Place:
        """Purpose, epoch and ranks claimed in the hello message, authenticated once ``complete`` is True."""
        if not self.complete or self._claimed is None:
            raise AuthError("the handshake is not complete")
        return self._claimed

    @property
    def session(self) -> Session:
        """Session keys of the connection, available when ``complete`` is True."""
        if not self.complete or self._keys is None:
            raise AuthError("the handshake is not complete")
        return Session(send=self._keys[1], receive=self._keys[0])

    def _receive(self, message: bytes) -> None:
        if self.invitation:
            self._receive_invitation(message)
        elif self._claimed is None:
            self._receive_hello(message)
        elif hmac.compare_digest(message, self._expected):
            self._agree(self._transcript + message, self._transcript[_HELLO.size - _NONCE : _HELLO.size])
            self.outgoing += _mac(self._key, b"welcome", self._transcript[: _HELLO.size], message)
            self.complete = True
        else:
            raise AuthError("the other side does not know the job's key")

    def _receive_hello(self, message: bytes) -> None:
        magic, purpose, cipher, epoch, source, target, _ = _HELLO.unpack(message)
        if magic[:-1] != _MAGIC[:-1]:
            raise AuthError("not a member of a Horovod job")
        if magic != _MAGIC:
            raise AuthError(
                f"the version of its handshake must be {_MAGIC[-1:]!r}, got {magic[-1:]!r}; install the same version "
                "of horovod on all hosts"
            )
        if epoch != self._epoch or target != self._rank or source == target:
            raise AuthError(
                f"meant for rank {target} in epoch {epoch}, this is rank {self._rank} in epoch {self._epoch}"
            )
        if purpose & _INVITATION:
            self.invitation = message
            self._need = _MAC
            return
        mine, nonce = self._make_nonce(self._ephemerals(purpose))
        if cipher != mine:
            raise AuthError(f"it means to encrypt by cipher {cipher}, this side by {mine}")
        mac = _mac(self._key, b"accept", message, nonce)
        self._expected = _mac(self._key, b"connect", message, nonce, mac)
        self._claimed = Place(purpose, epoch, source, target)
        self._transcript = message + nonce + mac
        self.outgoing += nonce + mac
        self._need = _MAC

    def _receive_invitation(self, mac: bytes) -> None:
        if not hmac.compare_digest(mac, _mac(self._key, b"invite", self.invitation)):
            raise AuthError("the other side does not know the job's key")
        _, purpose, _, epoch, source, target, _ = _HELLO.unpack(self.invitation)
        self.invited = Place(purpose & ~_INVITATION, epoch, source, target)
        self.complete = True


class Inviter(Acceptor):
    """Acceptor that opened the connection itself.

    It sends an invitation, and the peer then starts the handshake as the connector.
    """

    def __init__(self, key: bytes, place: Place, ephemerals: Ephemerals = _no_ephemeral) -> None:
        """Create an invitation. ``place.target`` is this rank, and ``place.source`` is the invited rank."""
        super().__init__(key, place.epoch, place.target, ephemerals)
        invitation = _HELLO.pack(
            _MAGIC,
            place.purpose | _INVITATION,
            0,
            place.epoch,
            place.target,
            place.source,
            secrets.token_bytes(_NONCE),
        )
        self.outgoing = invitation + _mac(key, b"invite", invitation)


def connect(sock: socket.socket, key: bytes, place: Place, timeout: float) -> None:
    """Run the connector's side of the handshake over a blocking socket.

    Raises AuthError, or TimeoutError after ``timeout`` seconds.
    """
    _drive(sock, Connector(key, place), timeout)


def accept(sock: socket.socket, key: bytes, epoch: int, rank: int, timeout: float) -> Place:
    """Run the acceptor's side of the handshake over a blocking socket, and return the connection's ``Place``.

    Raises AuthError, or TimeoutError after ``timeout`` seconds.
    """
    side = Acceptor(key, epoch, rank)
    _drive(sock, side, timeout)
    return side.place


def _drive(sock: socket.socket, side: _Side, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    try:
        while side.outgoing or not side.complete:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            if side.outgoing:
                data, side.outgoing = side.outgoing, b""
                sock.sendall(data)
            else:
                data = sock.recv(side.bytes_wanted)
                if not data:
                    raise AuthError("the other side closed the connection during the handshake")
                side.feed(data)
    except TimeoutError:
        raise TimeoutError(f"no answer within {timeout:g} s during the handshake") from None
    except OSError as error:
        raise AuthError(f"the connection broke during the handshake: {error.strerror}") from error
