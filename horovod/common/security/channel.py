"""An encrypted connection between two ends that share a secret and nothing else: no certificate, no name.

TLS by the library that Python comes with, with keys made for this connection alone (Diffie-Hellman in the group
ffdhe3072 of RFC 7919) and nobody's certificate; so whoever learns the secret later still cannot read what was recorded.
By itself that keeps out only who listens. ``binding`` is of both ends of one connection, and of no other: who puts
himself between the ends has another one with each. So when both ends prove that they know the secret under a key in
which it is (``bound_key``, with the handshake of ``auth``), nobody is in between.

It is version 1.2 because later ones have no such way without certificates, and no channel binding in Python.
"""

import os
import ssl
import time
from collections.abc import Callable
from socket import socket as Socket

from horovod.common.contract.secret import Secret
from horovod.common.security.auth import AuthError, _Side, derive_key

_CIPHER = "ADH-AES256-GCM-SHA384:@SECLEVEL=0"  # the level forbids what has no certificate; group and cipher are fixed
_GROUP = os.path.join(os.path.dirname(__file__), "ffdhe3072.pem")
_PIECE = 1 << 18


def _context(accepts: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_2
    # Neither may be carried over from another connection: the binding would not tell the two apart.
    made.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    try:
        made.set_ciphers(_CIPHER)
        if accepts:
            made.load_dh_params(_GROUP)
    except ssl.SSLError as error:
        raise AuthError(
            f"{ssl.OPENSSL_VERSION}, which this Python uses, does not allow {_CIPHER.partition(':')[0]} ({error}); "
            "accepted is OpenSSL 1.1.1 or later whose policy does"
        ) from None
    return made


class HungUp(AuthError):
    """The other side has closed the connection before all was said: it may be that it had no room."""


class Channel:
    """One end. No I/O: write ``take()`` to the connection, feed what comes."""

    def __init__(self, accepts: bool) -> None:
        """``accepts``: the end that was connected to. Raises AuthError where Python's TLS cannot do it."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context(accepts).wrap_bio(self._in, self._out, server_side=accepts)
        self.established = False
        self._advance()

    @property
    def binding(self) -> bytes:
        """Of this connection, at both ends, once ``established``. Raises AuthError without one."""
        found = self._tls.get_channel_binding("tls-unique") if self.established else None
        if not found:
            raise AuthError("the connection is not established")
        return found

    def take(self) -> bytes:
        """What is to be sent now."""
        return self._out.read()

    def write(self, data: bytes) -> None:
        """Encrypts; once ``established``."""
        if data:
            self._tls.write(data)

    def feed(self, data: bytes) -> bytes:
        """Takes what has come; returns what it says, decrypted. Raises AuthError when it was altered, or is no TLS."""
        self._in.write(data)
        if not self.established:
            self._advance()
            if not self.established:
                return b""
        text = bytearray()
        try:
            while piece := self._tls.read(_PIECE):
                text += piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise AuthError(f"what came was altered, or is not encrypted ({error.reason})") from None
        return bytes(text)

    def _advance(self) -> None:
        try:
            self._tls.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise AuthError(f"it does not speak as it should ({error.reason})") from None


def bound_key(secret: bytes, binding: bytes) -> Secret:
    """With which both ends of a connection, whose ``binding`` this is, prove that they know the secret."""
    return derive_key(secret, f"channel {binding.hex()}")


class Talk:
    """A channel over a socket, until everything is agreed on: blocking, with one deadline for all."""

    def __init__(self, sock: Socket, accepts: bool, seconds: float) -> None:
        """Makes the connection. Raises AuthError, HungUp among them, TimeoutError, OSError."""
        self.sock = sock
        self._until = time.monotonic() + seconds
        self._received = bytearray()
        self.channel = Channel(accepts)
        while not self.channel.established:
            self._send()
            self._receive()
        self._send()

    def prove(self, make: Callable[[bytes], _Side], secret: bytes) -> None:
        """Runs one side of the handshake, made by ``make`` with the key."""
        side = make(bound_key(secret, self.channel.binding))
        while side.outgoing or not side.done:
            if side.outgoing:
                data, side.outgoing = side.outgoing, b""
                self.write(data)
            else:
                side.feed(self.read(side.wanted))

    def write(self, data: bytes) -> None:
        self.channel.write(data)
        self._send()

    def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._received) < count:
            self._receive()
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    @property
    def rest(self) -> bytes:
        """What has come and was not read."""
        return bytes(self._received)

    def _send(self) -> None:
        if data := self.channel.take():
            self._wait()
            self.sock.sendall(data)

    def _receive(self) -> None:
        self._wait()
        data = self.sock.recv(_PIECE)
        if not data:
            raise HungUp("the other side has closed the connection")
        self._received += self.channel.feed(data)

    def _wait(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self.sock.settimeout(left)
