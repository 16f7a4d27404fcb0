"""Data service configuration, and the relay between training processes and dispatchers."""

import binascii
import contextlib
import json
import logging
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from horovod._bounded_server import BoundedServer
from horovod.common.compute import ComputeClient

SIDES = ("compute", "training")


@dataclass(frozen=True)
class TfDataServiceConfig:
    """Configuration of a data service.

    Attributes:
        dispatchers (int): Number of dispatchers.
        workers_per_dispatcher (int): Number of data workers per dispatcher.
        dispatcher_side (str): "compute" if dispatchers run in the processes of the data workers, or "training" if they
            run in the first ranks of the training.
        addresses (Mapping): Addresses of the ComputeService, by network interface.
        key (bytes): Key of the ComputeService.
        timeout (float): Seconds that parts of the service wait for each other. Default: 60.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = field(repr=False)
    timeout: float = 60

    def __post_init__(self) -> None:
        for name in ("dispatchers", "workers_per_dispatcher"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.dispatcher_side not in SIDES:
            raise ValueError(f"dispatcher_side must be one of {', '.join(SIDES)}, got {self.dispatcher_side!r}")
        if not self.timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, got {self.timeout!r}")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Return a client for the data service.

        Raises:
            ConnectionError: If the service does not respond.
        """
        return ComputeClient(self.addresses, self.key, verbose)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a JSON-compatible dict.

        The dict contains the service's key in hexadecimal. Keep it secret: the key gives full access to the service.
        """
        return {
            "dispatchers": self.dispatchers,
            "workers_per_dispatcher": self.workers_per_dispatcher,
            "dispatcher_side": self.dispatcher_side,
            "addresses": {name: [list(place) for place in places] for name, places in self.addresses.items()},
            "key": binascii.hexlify(self.key).decode(),
            "timeout": self.timeout,
        }

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> "TfDataServiceConfig":
        """Create a configuration from the result of ``to_dict``.

        Returns:
            TfDataServiceConfig: The configuration.

        Raises:
            ValueError: If the dict was not created by ``to_dict``.
        """
        try:
            addresses = {
                name: [(host, int(port)) for host, port in found] for name, found in config["addresses"].items()
            }
            numbers = config["dispatchers"], config["workers_per_dispatcher"], config["dispatcher_side"]
            key = binascii.unhexlify(config["key"])
            return TfDataServiceConfig(*numbers, addresses, key, config.get("timeout", 60))
        except (KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ValueError(f"no configuration of a data service: {type(error).__name__}: {error}") from error

    def write(self, filename: "str | os.PathLike[str]") -> None:
        """Write the configuration atomically to a file that only its owner can read."""
        folder = os.path.dirname(os.path.abspath(filename))
        # Use mkstemp, which creates the file with mode 0600, so that only its owner can read it.
        fd, name = tempfile.mkstemp(prefix=".compute-", dir=folder)
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(self.to_dict(), file)
            os.replace(name, filename)
        except BaseException:
            os.unlink(name)
            raise

    @staticmethod
    def read(
        filename: "str | os.PathLike[str]", wait_for_file_creation: bool = False, timeout: float = 600.0
    ) -> "TfDataServiceConfig":
        """Read the configuration from a file.

        Args:
            filename (str or PathLike): Path of the file.
            wait_for_file_creation (bool): Wait until the file exists and the service that it describes responds. A file
                left by a killed service is therefore ignored until a new service replaces it. Default: False.
            timeout (float): Maximum seconds to wait. Default: 600.

        Returns:
            TfDataServiceConfig: The configuration.

        Raises:
            TimeoutError: If the file or the service did not appear in time.
            ValueError: If the file is not a configuration file, or users other than its owner may read or write it.
            OSError: If the file cannot be read.
            FileNotFoundError: If the file does not exist and ``wait_for_file_creation`` is False.
        """
        until = time.monotonic() + timeout
        while True:
            lacks = ""
            try:
                config = _read(filename)
                if not wait_for_file_creation:
                    return config
                with config.compute_client():
                    return config
            except FileNotFoundError:
                if not wait_for_file_creation:
                    raise
            except ConnectionError as error:
                lacks = f" of a service that is there: {error}"
            if time.monotonic() >= until:
                raise TimeoutError(f"waited {timeout:g} s for the file {os.fspath(filename)}{lacks}")
            time.sleep(0.2)

    def remove(self, filename: "str | os.PathLike[str]") -> None:
        """Remove the configuration file if it describes this service."""
        with contextlib.suppress(OSError, ValueError):
            if _read(filename).key == self.key:
                os.remove(filename)


def _read(filename: "str | os.PathLike[str]") -> TfDataServiceConfig:
    with open(filename, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & 0o077:
            raise ValueError(
                f"{os.fspath(filename)} must have mode 0600, got {stat.S_IMODE(mode):04o}: it contains a key"
            )
        data = file.read()
    try:
        return TfDataServiceConfig.from_dict(json.loads(data))
    except ValueError as error:
        raise ValueError(f"{os.fspath(filename)}: {error}") from error


# -- the relay, which makes readers fail if the dispatcher is lost ---------------------------------------------------

log = logging.getLogger("horovod.data")

_LOOPBACK = "127.0.0.1"
# Maximum number of connections that a relay accepts.
_MAX_CONNECTIONS = 256
# Maximum seconds between two health checks of the dispatcher.
_MAX_SECONDS = 5.0
# Start of a gRPC connection (RFC 9113, 3.4): the preface and an empty SETTINGS frame. The server replies with its own
# settings.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

_service = tf.data.experimental.service


class Relay:
    """Relay from a local port to a dispatcher, with a thread that monitors the dispatcher.

    TensorFlow retries a lost dispatcher forever, and Python cannot interrupt the retries. So if a dispatcher has not
    responded for ``config.timeout`` seconds, an empty dispatcher in this process takes over the port. It does not have
    the datasets that are being read. All reads therefore raise ``tf.errors.NotFoundError``, and the logger
    ``horovod.data`` names the dispatcher. Only control messages use the relay: the data comes directly from the
    workers.
    """

    def __init__(self, config: TfDataServiceConfig, number: int, dispatcher: str, reader: int | None = None) -> None:
        """Start the relay.

        Args:
            config: Configuration of the service.
            number: Index of the dispatcher.
            dispatcher: Address of the dispatcher, HOST:PORT.
            reader: Id of this reader in its heartbeats to the service. If None, no heartbeats are sent.
        """
        host, _, port = dispatcher.rpartition(":")
        self._dispatcher, self._number, self._config, self._reader = (host, int(port)), number, config, reader
        self._seconds = min(_MAX_SECONDS, config.timeout / 4)
        self._closed = threading.Event()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._empty: Any = None
        # A gRPC client sends data first, so drop connections that send nothing. If they stayed open, other processes on
        # this host could exhaust this process's file descriptors.
        self._server = BoundedServer((_LOOPBACK, 0), self._connect, _MAX_CONNECTIONS, name="horovod-data-service")
        self.address = f"{_LOOPBACK}:{self._server.server_address[1]}"
        self._start(self._watch)

    @property
    def leads_there(self) -> bool:
        return not self._closed.is_set()

    def close(self) -> None:
        """Stop relaying. Can be called repeatedly."""
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
        data = near.recv(1 << 16)
        server.received(near)
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
            far.sendall(data)
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
            over, last_data = False, time.monotonic()
            while not self._closed.is_set():
                if client is not None and not over:
                    over = client.is_over(self._number, self._seconds)
                    if self._reader is not None:
                        client.send_reader_heartbeat(self._number, self._reader)
                else:
                    self._closed.wait(self._seconds)
                if responds(self._dispatcher, self._seconds):
                    last_data = time.monotonic()
                elif time.monotonic() - last_data >= self._config.timeout and not self._closed.is_set():
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


def responds(place: tuple[str, int], seconds: float) -> bool:
    """Return True if a gRPC server responds at the address.

    An open port is not enough, because a suspended process keeps its port open.
    """
    try:
        with socket.create_connection(place, seconds) as asked:
            asked.settimeout(seconds)
            asked.sendall(_GREETING)
            return bool(asked.recv(1))
    except OSError:
        return False


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Copy data from one socket to the other until either side closes its socket, then shut both down."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
