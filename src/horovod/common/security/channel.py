"""Encrypted connection between two ends that share a secret, without certificates or host names.

The channel uses TLS from Python's own library, with keys made for this connection only (Diffie-Hellman in the group
ffdhe3072 of RFC 7919) and without certificates. So an attacker who learns the secret later cannot read recorded
connections. Without certificates, TLS protects only against eavesdroppers. To protect against an attacker in the
middle, the channel has a ``binding``, which identifies the TLS connection. The attacker would have a different
connection with each end, and so a different binding. Both ends derive a key from the secret and the binding
(``bound_key``) and prove with the handshake of ``auth`` that their keys are equal. The TLS version is 1.2, because
later versions have no mode without certificates, and Python has no channel binding for them.
"""

import os
import ssl
import time
from collections.abc import Callable
from socket import socket as Socket

from horovod.common.contract.private_files import Secret
from horovod.common.security.auth import AuthError, _Side, derive_key

# OpenSSL's higher security levels forbid connections without certificates. Group and cipher are fixed.
_CIPHER = "ADH-AES256-GCM-SHA384:@SECLEVEL=0"
_GROUP = os.path.join(os.path.dirname(__file__), "ffdhe3072.pem")
_PIECE = 1 << 18


def _context(accepts: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    # Forbid session resumption and renegotiation, which would let several connections share a channel binding.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    try:
        context.set_ciphers(_CIPHER)
        if accepts:
            context.load_dh_params(_GROUP)
    except ssl.SSLError as error:
        raise AuthError(
            f"{ssl.OPENSSL_VERSION}, which this Python uses, does not allow {_CIPHER.partition(':')[0]} ({error}); "
            "use OpenSSL 1.1.1 or later with a policy that does"
        ) from None
    return context


class HungUp(AuthError):
    """Raised if the peer closed the connection early, possibly because it has too many connections."""


class Channel:
    """One end of a channel.

    It does no I/O: the caller sends the result of ``take()`` and passes received data to ``feed``.
    """

    def __init__(self, accepts: bool) -> None:
        """Create one end of the channel.

        Args:
            accepts: True for the end that has accepted the connection.

        Raises:
            AuthError: If Python's TLS library does not support this mode.
        """
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context(accepts).wrap_bio(self._in, self._out, server_side=accepts)
        self.established = False
        self._advance()

    @property
    def binding(self) -> bytes:
        """Channel-binding value, equal at both ends. Raises AuthError unless ``established`` is True."""
        found = self._tls.get_channel_binding("tls-unique") if self.established else None
        if not found:
            raise AuthError("the connection is not established")
        return found

    def take(self) -> bytes:
        """Return the data to send to the peer: handshake messages, and what ``write`` has encrypted."""
        return self._out.read()

    def write(self, data: bytes) -> None:
        """Encrypt data. The next ``take`` returns the result. Call this only when ``established`` is True."""
        if data:
            self._tls.write(data)

    def feed(self, data: bytes) -> bytes:
        """Decrypt received data and return the content. Raises AuthError if the data was altered or is not TLS."""
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
    """Derive the key that both ends of the connection use to prove that they know the secret."""
    return derive_key(secret, f"channel {binding.hex()}")


class Talk:
    """Encrypted channel over a blocking socket. All operations share one deadline."""

    def __init__(self, sock: Socket, accepts: bool, seconds: float) -> None:
        """Run the TLS handshake. Raises AuthError (including HungUp), TimeoutError or OSError."""
        self.sock = sock
        self._until = time.monotonic() + seconds
        self._received = bytearray()
        self.channel = Channel(accepts)
        while not self.channel.established:
            self._send()
            self._receive()
        self._send()

    def prove(self, make: Callable[[bytes], _Side], secret: bytes) -> None:
        """Authenticate the peer over the channel.

        Args:
            make: Function that creates this side's handshake from a key.
            secret: Secret that both ends know. The key is derived from it and from the channel, so that a handshake
                cannot be relayed to another channel.
        """
        side = make(bound_key(secret, self.channel.binding))
        while side.outgoing or not side.complete:
            if side.outgoing:
                data, side.outgoing = side.outgoing, b""
                self.write(data)
            else:
                side.feed(self.read(side.bytes_wanted))

    def write(self, data: bytes) -> None:
        """Encrypt data and send it."""
        self.channel.write(data)
        self._send()

    def read(self, count: int) -> bytes:
        """Read exactly ``count`` bytes of decrypted data."""
        while len(self._received) < count:
            self._receive()
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    @property
    def rest(self) -> bytes:
        """Decrypted data that was not read yet."""
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
