"""Messages that a stranger may send to a port.

They are those of scanners, of other protocols, of handshakes with wrong keys, and pickles that run a command when
unpickled.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import pickle
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from horovod.common.security.auth import Connector, Place
from tests.security.jobs import Listener

CHALLENGE = 64  # bytes
ANSWER_LIMIT = 4096  # bytes; greetings and challenges are a few hundred


class Bomb:
    """When unpickled, creates the file."""

    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self._marker}'",)


def pickles(marker: Path) -> list[bytes]:
    return [pickle.dumps(Bomb(marker), protocol) for protocol in (0, 2, pickle.HIGHEST_PROTOCOL)]


def pickled_messages(marker: Path) -> list[bytes]:
    """Return Bombs in the formats in which services accept pickles.

    Bare, with a length, with a digest under an empty or guessed key, and in text.
    """
    sent = []
    for body in pickles(marker):
        sent.append(body)
        for order in (">", "<"):
            length = struct.pack(order + "I", len(body))
            sent += [length + body, struct.pack(order + "Q", len(body)) + body]
            for key in (b"", b"0" * 32, b"horovod"):
                sent.append(hmac.digest(key, body, hashlib.sha256) + length + body)
        sent.append(base64.b64encode(body) + b"\n")
    return sent


def http_requests(marker: Path) -> list[bytes]:
    """Return requests to the key-value and rendezvous servers of original Horovod: store a bomb, have it read."""
    sent = []
    for body in [*pickles(marker), base64.b64encode(pickles(marker)[0])]:
        for path in ("/global/rendezvous", "/runfunc/func", "/rank_and_size/localhost/0", "/worker_addresses/0"):
            for method in ("PUT", "POST"):
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
                sent.append(head.encode() + body)
    sent += [b"GET /runfunc/func HTTP/1.0\r\n\r\n", b"DELETE /global/rendezvous HTTP/1.1\r\nContent-Length: 1\r\n\r\n1"]
    return sent


def zeromq_messages(marker: Path) -> list[bytes]:
    """Return messages of ZeroMQ's protocol (ZMTP 3, RFC 23) without the job's keys.

    No security, a password, and frames with huge declared lengths.
    """

    def greeting(mechanism: bytes) -> bytes:
        return b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)

    body = pickles(marker)[-1]
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    huge = b"\x06" + struct.pack(">Q", 1 << 62)
    return [
        greeting(b"NULL") + ready + b"\x00" + bytes([len(body)]) + body,
        greeting(b"PLAIN") + b"\x04\x10\x05HELLO\x04user\x04pass",
        greeting(b"CURVE") + b"\x04\xc8\x05HELLO\x01\x00" + os.urandom(193),
        greeting(b"CURVE") + huge + b"x" * 4096,
        greeting(b"CURVE") + b"\x06" + struct.pack(">Q", 1 << 19) + os.urandom(1 << 16),
        greeting(b"CURVE")[:40],
        b"\x01\x00" + body,
    ]


def handshakes(keys: Iterable[bytes]) -> list[bytes]:
    """Return hellos under wrong keys, for many purposes and ranks, with a guessed proof; and truncated ones."""
    sent = []
    for key in keys:
        for epoch in range(4):
            for source, target in ((0, 1), (1, 0), (2, 0), (2, 1)):
                for purpose in (1, 2, 3):
                    hello = Connector(key, Place(purpose, epoch, source, target)).outgoing
                    sent.append(hello + hmac.digest(key, hello, hashlib.sha256))
        sent += [hello[:30], hello[:4] + os.urandom(len(hello))]
    return sent


def noise() -> list[bytes]:
    generator = random.Random(20)
    sent = [
        b"",
        b"\0",
        b"\n",
        bytes(4096),
        b"\xff" * 65536,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
    ]
    return sent + [generator.randbytes(generator.choice((1, 8, 56, 64, 300, 5000))) for _ in range(20)]


def all_messages(marker: Path, other_key: bytes) -> list[bytes]:
    """Return all messages. ``other_key``: key of another job of this user, whose members must not be trusted either."""
    sent = pickled_messages(marker) + http_requests(marker) + zeromq_messages(marker)
    return sent + handshakes([other_key, bytes(32)]) + noise()


def connect(listener: Listener) -> socket.socket:
    """Return a socket connecting to the listener, without waiting."""
    if listener.kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
        target: object = listener.address
    else:
        address = str(listener.address)
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        target = (address, listener.port)
    sock.setblocking(False)
    sock.connect_ex(target)  # a full queue or a refusal counts as a connection here
    return sock


def attack(
    listeners: Iterable[Listener], messages: Iterable[bytes], at_once: int = 40, seconds: float = 2.0
) -> list[bytes]:
    """Send each message to each listener over a new connection; return all answers that are not empty.

    ``at_once``: number of concurrent connections. ``seconds``: how long answers to a batch are awaited.
    """
    todo = [(listener, message) for message in messages for listener in listeners]
    replies: list[bytes] = []
    for begin in range(0, len(todo), at_once):
        replies += _attack_at_once(todo[begin : begin + at_once], seconds)
    return replies


def _attack_at_once(todo: list[tuple[Listener, bytes]], seconds: float) -> list[bytes]:
    replies: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for listener, message in todo:
            sock = connect(listener)
            with contextlib.suppress(OSError):
                if sock.send(message) < len(message):
                    sock.shutdown(socket.SHUT_WR)
            selector.register(sock, selectors.EVENT_READ)
            replies[sock] = b""
        deadline = time.monotonic() + seconds
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                sock = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(OSError):
                    if more := sock.recv(ANSWER_LIMIT):
                        replies[sock] += more
                        continue
                selector.unregister(sock)
                sock.close()
        for sock in replies:
            sock.close()
    return [reply for reply in replies.values() if reply]


class Loiterers:
    """Idle connections: some send nothing, some a byte now and then, and dropped ones reconnect."""

    def __init__(self, listeners: Iterable[Listener], count: int) -> None:
        self._listeners = list(listeners)
        self._count = count
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.opened = 0

    def __enter__(self) -> Loiterers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        open_ones = [(listener, connect(listener)) for listener in self._listeners for _ in range(self._count)]
        self.opened += len(open_ones)
        while not self._end.wait(0.1):
            for index, (listener, sock) in enumerate(open_ones):
                try:
                    if sock.recv(100, socket.MSG_PEEK) == b"":
                        raise ConnectionResetError
                except BlockingIOError:
                    if index % 3 == 0:
                        with contextlib.suppress(OSError):
                            sock.send(b"H")
                except OSError:
                    sock.close()
                    open_ones[index] = (listener, connect(listener))
                    self.opened += 1
        for _, sock in open_ones:
            sock.close()


def greets_only(reply: bytes) -> bool:
    """Return True if an answer contains only what every stranger gets.

    That is ZeroMQ's greeting and errors, or a challenge of a nonce and a MAC.
    """
    return reply[:1] == b"\xff" or len(reply) == CHALLENGE
