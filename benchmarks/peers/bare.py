"""Benchmark peer that uses plain sockets in a ring, to show the speed of the link without a collective.

Each rank sends 2 (P-1)/P times the case's bytes to the next rank, and receives as many from the previous rank. An
allreduce must send and receive this amount on each host. Small messages are exchanged by a loop in C, which does not
sleep (limit.c).
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable

from cases import Case

from . import limit

_PORT = 41000
_CONNECT_SECONDS = 30.0
# Maximum size in bytes of a message that the loop in C exchanges.
_SMALL = 16 << 10


class Peer:
    """Rank in a ring of plain sockets, configured by environment variables.

    BENCH_RANK and BENCH_SIZE are its rank and the number of ranks. BENCH_ADDRESSES has the ranks' addresses, separated
    by commas. BENCH_STREAMS is the number of connections (default: one).
    """

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        self.streams = int(os.environ.get("BENCH_STREAMS", "1"))
        self.about = f"sockets around a ring, {self.streams} connection(s) a link"
        self.out, self.incoming = self._join(os.environ["BENCH_ADDRESSES"].split(","))

    def _join(self, addresses: list[str]) -> tuple[list[socket.socket], list[socket.socket]]:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((addresses[self.rank], _PORT + self.rank))
            listener.listen(self.streams)
            listener.settimeout(_CONNECT_SECONDS)
            following = (self.rank + 1) % self.size
            out = [connect((addresses[following], _PORT + following)) for _ in range(self.streams)]
            incoming = [listener.accept()[0] for _ in range(self.streams)]
        for connection in out + incoming:
            connection.settimeout(_CONNECT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return out, incoming

    def barrier(self) -> None:
        # Two trips around the ring: the first collects the values, and the second distributes the result.
        for _ in range(2):
            if self.rank == 0:
                self.out[0].sendall(b"x")
            take(self.incoming[0], memoryview(bytearray(1)))
            if self.rank != 0:
                self.out[0].sendall(b"x")

    def prepare(self, case: Case, mode: str) -> Callable[[], None]:
        each = 2 * (self.size - 1) * case.bytes // self.size // self.streams
        buffer, target = memoryview(bytes(each)), memoryview(bytearray(each))
        if self.streams == 1 and each <= _SMALL and limit.compiler():
            return self._small(each)

        def move() -> None:
            threads = [threading.Thread(target=s.sendall, args=(buffer,)) for s in self.out]
            threads += [threading.Thread(target=take, args=(s, target)) for s in self.incoming[1:]]
            for thread in threads:
                thread.start()
            take(self.incoming[0], target)
            for thread in threads:
                thread.join()

        return move

    def _small(self, each: int) -> Callable[[], None]:
        exchange = limit.compiled().exchange
        data, target = (ctypes.c_char * each)(), (ctypes.c_char * each)()
        to, source = self.out[0], self.incoming[0]
        # Use one connection in both directions if there is only one neighbour: the messages then also carry the
        # acknowledgements.
        if self.size == 2:
            to = source = to if self.rank == 0 else source
        arguments = (to.fileno(), data, source.fileno(), target, each)

        def move() -> None:
            if exchange(*arguments) != 0:
                raise ConnectionError("the exchange with the neighbours failed")

        return move

    def stop(self) -> None:
        for connection in self.out + self.incoming:
            connection.close()


def connect(where: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection(where, timeout=_CONNECT_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def take(connection: socket.socket, target: memoryview) -> None:
    """Receive bytes until `target` is full; raise ConnectionError if the stream ends early."""
    while target:
        n = connection.recv_into(target)
        if n == 0:
            raise ConnectionError("the previous rank closed its connection")
        target = target[n:]
