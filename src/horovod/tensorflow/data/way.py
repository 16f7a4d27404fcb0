"""Relay from a process to a dispatcher, which makes readers fail if the dispatcher is lost."""

import contextlib
import logging
import socket
import threading
import time
from typing import Any

import tensorflow as tf

from horovod._bounded_server import BoundedServer
from horovod.common.compute import ComputeClient
from horovod.tensorflow.data.config import TfDataServiceConfig

log = logging.getLogger("horovod.data")

_LOOPBACK = "127.0.0.1"
# Maximum number of connections.
_MOST = 256
# Maximum interval between checks of the dispatcher, in seconds.
_MOST_SECONDS = 5.0
# Beginning of a gRPC connection (RFC 9113, 3.4) with an empty SETTINGS frame; the server answers with its settings.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

_service = tf.data.experimental.service


class Way:
    """Local port that relays connections to a dispatcher, and a thread that monitors the dispatcher.

    TensorFlow retries a lost dispatcher forever, and Python cannot interrupt it. So if a dispatcher has not responded
    for ``config.timeout`` seconds, the port is passed to an empty dispatcher in this process, which does not know the
    datasets being read. All reads then raise ``tf.errors.NotFoundError``, and the logger ``horovod.data`` names the
    dispatcher. Only control messages use the relay: the data comes directly from the workers.
    """

    def __init__(self, config: TfDataServiceConfig, number: int, dispatcher: str, reader: int | None = None) -> None:
        """Start the relay.

        Args:
            config: Configuration of the service.
            number: Number of the dispatcher.
            dispatcher: Address of the dispatcher, HOST:PORT.
            reader: Number under which heartbeats of this reader are sent to the service; None for none.
        """
        host, _, port = dispatcher.rpartition(":")
        self._dispatcher, self._number, self._config, self._reader = (host, int(port)), number, config, reader
        self._seconds = min(_MOST_SECONDS, config.timeout / 4)
        self._closed = threading.Event()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._empty: Any = None
        # A gRPC client speaks first. Other processes of this host that connect without doing so must not use up this
        # process's file descriptors.
        self._server = BoundedServer((_LOOPBACK, 0), self._connect, _MOST, name="horovod-data-service")
        self.address = f"{_LOOPBACK}:{self._server.server_address[1]}"
        self._start(self._watch)

    @property
    def leads_there(self) -> bool:
        return not self._closed.is_set()

    def close(self) -> None:
        """Stop relaying. Idempotent."""
        self._closed.set()
        self._server.close()
        with self._lock:
            for one in self._connections:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _start(work: Any, *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="horovod-data-service", daemon=True).start()

    def _connect(self, near: socket.socket, _client: object, server: BoundedServer) -> None:
        said = near.recv(1 << 16)
        server.heard(near)
        near.settimeout(None)
        try:
            far = socket.create_connection(self._dispatcher, self._seconds)
        except OSError:
            return  # TensorFlow retries
        with far:
            far.settimeout(None)
            with self._lock:
                if self._closed.is_set():
                    return
                self._connections |= {near, far}
            far.sendall(said)
            back = threading.Thread(target=_pass_on, args=(far, near), name="horovod-data-service", daemon=True)
            back.start()
            _pass_on(near, far)
            back.join()
            with self._lock:
                self._connections -= {near, far}

    def _watch(self) -> None:
        with contextlib.ExitStack() as ends:
            client: ComputeClient | None = None
            with contextlib.suppress(OSError):
                client = ends.enter_context(self._config.compute_client())
            over, heard = False, time.monotonic()
            while not self._closed.is_set():
                if client is not None and not over:
                    over = client.is_over(self._number, self._seconds)
                    if self._reader is not None:
                        client.say_reader_lives(self._number, self._reader)
                else:
                    self._closed.wait(self._seconds)
                if answers(self._dispatcher, self._seconds):
                    heard = time.monotonic()
                elif time.monotonic() - heard >= self._config.timeout and not self._closed.is_set():
                    self._give_up(over)

    def _give_up(self, over: bool) -> None:
        self.close()
        log.log(
            logging.INFO if over else logging.ERROR,
            "dispatcher %d of the data service, at %s:%d, %s: what reads of it gets a NotFoundError",
            self._number,
            *self._dispatcher,
            "has ended" if over else f"has not answered for {self._config.timeout:g} s",
        )
        self._empty = _service.DispatchServer(_service.DispatcherConfig(port=int(self.address.rpartition(":")[2])))


def answers(place: tuple[str, int], seconds: float) -> bool:
    """Return True if a gRPC server responds. A stopped process has an open port but does not respond."""
    try:
        with socket.create_connection(place, seconds) as asked:
            asked.settimeout(seconds)
            asked.sendall(_GREETING)
            return bool(asked.recv(1))
    except OSError:
        return False


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Copy data until one of the sockets closes."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
