"""Registry of a tf.data service's dispatchers and workers, and of the training jobs that read from it.

The registry is a key-value store like a job's, protected by its own secret. Clients without the secret can neither read
nor change it. This module does not depend on any framework.

Names in the store, for dispatcher D:

- ``dispatcher.D``: address of the dispatcher
- ``worker.D.W``: address of worker W
- ``over.D``: set when the dispatcher is no longer needed
- ``left.D.W``: set when worker W has noticed that the dispatcher is no longer needed

If the dispatcher runs on the training side, also:

- ``reader.D.R``: identity of reader R
- ``lives.D.R``: heartbeat of reader R
- ``done.D.R``: set when reader R has finished
"""

import contextlib
import itertools
import logging
import socket
import time
import uuid
from collections.abc import Collection, Mapping, Sequence

from horovod.common.network.interfaces import scan, to_listen
from horovod.common.store import StoreClient, StoreServer, StoreTimeout

log = logging.getLogger("horovod.data")

Addresses = Mapping[str, Sequence[tuple[str, int]]]
"""Addresses as (address, port) pairs, by network interface."""

# Seconds between checks that the service is still running, during waits without a deadline.
_SILENCE_SECONDS = 20.0
_REPLY_SECONDS = 5.0
_UNHEARD = 3  # consecutive unanswered checks after which the service is considered gone
_LEAVE_SECONDS = 10.0
_READERS_SECONDS = 1.0  # seconds between checks of the active readers


class ComputeService:
    """Server of a data service's registry. Runs in its own thread until ``close`` is called."""

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Collection[str] | None = None
    ) -> None:
        """Start the server of a data service.

        Args:
            dispatchers: Number of dispatchers.
            workers_per_dispatcher: Number of workers of each dispatcher.
            key: Secret of any length that clients must know, preferably 32 random bytes.
            nics: Network interfaces to listen on. None means all interfaces.

        Raises:
            ValueError: If an interface does not exist or a number is below 1.
            OSError: If the server cannot listen on an address.
        """
        for name, value in (("dispatchers", dispatchers), ("workers_per_dispatcher", workers_per_dispatcher)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        # List physical interfaces first and the loopback interface last.
        found: dict[str, list[str]] = {}
        for place in to_listen(scan(), "", alone=False):
            if ":" not in place.address:
                found.setdefault(place.interface, []).append(place.address)
        if lost := sorted(set(nics or ()) - set(found)):
            raise ValueError(f"nics must be among {', '.join(sorted(found))}, got {', '.join(lost)}")
        allowed = {name: texts for name, texts in found.items() if nics is None or name in nics}
        hosts = ["0.0.0.0"] if nics is None else [text for texts in allowed.values() for text in texts]
        listeners = [socket.create_server((hosts[0], 0))]
        port = listeners[0].getsockname()[1]
        try:
            listeners += [socket.create_server((host, port)) for host in hosts[1:]]
        except OSError:
            for one in listeners:
                one.close()
            raise
        self._server = StoreServer(key, listeners=listeners)
        self._addresses = {name: [(text, port) for text in texts] for name, texts in allowed.items()}
        try:
            self._client = ComputeClient(self._addresses, key)
            self._client._set("dispatchers", str(dispatchers))
        except BaseException:
            self._server.close()
            raise
        self._workers = [f"{one}.{index}" for one in range(dispatchers) for index in range(workers_per_dispatcher)]

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Return the registry's addresses, to which clients connect."""
        return self._addresses

    def wait_for_shutdown(self) -> None:
        """Wait until no dispatcher is needed anymore and all workers have been told to exit."""
        for number in range(self._client.dispatchers()):
            self._client.wait_for_shutdown(number)
        with contextlib.suppress(StoreTimeout):
            names = [name for name in self._workers if self._client._find(f"worker.{name}") is not None]
            self._client._get([f"left.{name}" for name in names], _LEAVE_SECONDS)

    def close(self) -> None:
        """Stop the server. Can be called repeatedly."""
        self._client.close()
        self._server.close()

    def __enter__(self) -> "ComputeService":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ComputeClient:
    """Client of a data service's registry. Not thread-safe."""

    def __init__(
        self,
        addresses: Addresses | None = None,
        key: bytes = b"",
        verbose: int = 1,
        *,
        compute_addresses: Addresses | None = None,
    ) -> None:
        """Connect to the registry of a data service.

        Args:
            addresses: Addresses of the service by network interface, from ``ComputeService.addresses``.
            key: Key of the service.
            verbose: Verbosity. With 2 or more, actions are logged to ``horovod.data`` at level INFO.
            compute_addresses: Alias of ``addresses`` for existing programs.

        Raises:
            ValueError: If there is no address.
            ConnectionError: If no server with this key answers. The message names the addresses.
            TypeError: If both ``addresses`` and ``compute_addresses`` are passed.
        """
        if addresses is not None and compute_addresses is not None:
            raise TypeError(
                "only one of addresses and compute_addresses must be given, got both; they are the same argument"
            )
        addresses = (compute_addresses if addresses is None else addresses) or {}
        places = [(host, port) for found in addresses.values() for host, port in found]
        if not places:
            raise ValueError(f"addresses must have at least one address, got {dict(addresses)!r}")
        self._verbose = verbose
        self.here = ""
        """This host's address on the route to the service. Other members of the service can use it."""
        # Try loopback addresses last, because here they refer to this host instead of the service's host.
        self._store = self._connect(sorted(places, key=lambda place: place[0].startswith("127.")), key)

    def dispatchers(self) -> int:
        """Return the number of dispatchers of the service."""
        return int(self._get(["dispatchers"], _REPLY_SECONDS)[0])

    def register_dispatcher(self, number: int, address: str) -> None:
        """Register dispatcher ``number`` at ``address``, as HOST:PORT."""
        self._send("dispatcher %d is at %s", number, address)
        self._set(f"dispatcher.{number}", address)

    def wait_for_dispatcher_registration(self, number: int, timeout: float) -> str:
        """Wait until the dispatcher has registered, and return its address. Raises TimeoutError after ``timeout`` s."""
        return self._await([f"dispatcher.{number}"], timeout, f"dispatcher {number} of the data service")[0]

    def register_worker_for_dispatcher(self, number: int, index: int, address: str = "") -> None:
        """Register worker ``index`` of dispatcher ``number``, which listens on ``address`` (HOST:PORT)."""
        self._send("worker %d of dispatcher %d is there", index, number)
        self._set(f"worker.{number}.{index}", address)

    def find_worker(self, number: int, index: int) -> str:
        """Return the latest address of worker ``index`` of dispatcher ``number``, or "" if it has not registered."""
        return (self._find(f"worker.{number}.{index}") or b"").decode()

    def wait_for_dispatcher_worker_registration(self, number: int, workers: int, timeout: float) -> None:
        """Wait until ``workers`` workers of the dispatcher have registered.

        Raises:
            TimeoutError: If workers are missing after ``timeout`` seconds. The message names them.
        """
        names = [f"worker.{number}.{index}" for index in range(workers)]
        self._await(names, timeout, f"workers of dispatcher {number} of the data service")

    def wait_for_shutdown(self, number: int) -> None:
        """Wait until the dispatcher is no longer needed. If the service is gone, log a warning and return."""
        unheard = 0
        while True:
            try:
                self._get([f"over.{number}"], _SILENCE_SECONDS)
                return
            except StoreTimeout as error:
                unheard = 0 if error.missing else unheard + 1
                if unheard == _UNHEARD:
                    log.warning("the data service is gone: %s", error)
                    return

    def leave(self, number: int, index: int) -> None:
        """Record that worker ``index`` of dispatcher ``number`` is ending."""
        with contextlib.suppress(StoreTimeout):
            self._set(f"left.{number}.{index}", "")

    def register_reader(self, number: int) -> int:
        """Register a new reader (a training process that reads from the dispatcher), and return its number."""
        me = uuid.uuid4().hex.encode()
        return next(one for one in itertools.count() if self._store.set_first(f"reader.{number}.{one}", me) == me)

    def send_reader_heartbeat(self, number: int, reader: int) -> None:
        """Send a heartbeat for a reader. Call this regularly while the reader reads."""
        with contextlib.suppress(StoreTimeout):
            self._set(f"lives.{number}.{reader}", uuid.uuid4().hex)

    def end_reader(self, number: int, reader: int) -> None:
        """Record that reader ``reader`` of dispatcher ``number`` has finished reading."""
        with contextlib.suppress(StoreTimeout):
            self._set(f"done.{number}.{reader}", "")

    def wait_for_readers(self, number: int, expected: int, patience: float) -> None:
        """Wait until at least ``expected`` readers have registered and all registered readers have finished.

        Args:
            number: Number of the dispatcher.
            expected: Number of readers to wait for.
            patience: Seconds without a registration or heartbeat after which a reader is ignored, with a warning.
        """
        start = time.monotonic()
        # Last heartbeat of each reader, with its arrival time.
        lives: dict[int, tuple[bytes | None, float]] = {}
        # If the service is gone, its workers are gone too, so the wait is over.
        with contextlib.suppress(StoreTimeout):
            while True:
                readers = list(itertools.takewhile(lambda one: self._find(f"reader.{number}.{one}"), itertools.count()))
                now = time.monotonic()
                for one in readers:
                    beat = self._find(f"lives.{number}.{one}")
                    if one not in lives or lives[one][0] != beat:
                        lives[one] = beat, now
                reading = [one for one in readers if self._find(f"done.{number}.{one}") is None]
                alive = [one for one in reading if now - lives[one][1] < patience]
                absent = max(0, expected - len(readers))
                if not alive and (not absent or now - start >= patience):
                    break
                awaited = [f"done.{number}.{one}" for one in alive] or [f"reader.{number}.{len(readers)}"]
                self._wait_a_moment(awaited)
            if reading or absent:
                log.warning(
                    "dispatcher %d of the data service ends, though of those that read of it %d have not said for %g s "
                    "that they live, and %d have not come",
                    *(number, len(reading), patience, absent),
                )

    def _wait_a_moment(self, names: list[str]) -> None:
        try:
            self._get(names, _READERS_SECONDS)
        except StoreTimeout as error:
            if not error.missing:
                raise

    def is_over(self, number: int, seconds: float) -> bool:
        """Wait up to ``seconds``. Return True if the dispatcher is no longer needed."""
        try:
            self._get([f"over.{number}"], seconds)
            return True
        except StoreTimeout:
            return False

    def end_dispatcher(self, number: int) -> None:
        """Record that the dispatcher is no longer needed, so that its workers exit."""
        self._send("dispatcher %d is not needed any more", number)
        self._set(f"over.{number}", "")

    def dispatcher_ends(self, number: int) -> None:
        """Record that the dispatcher is no longer needed. Has no effect if the service is gone."""
        with contextlib.suppress(StoreTimeout):
            self.end_dispatcher(number)

    def shutdown(self) -> None:
        """Record that no dispatcher is needed. Workers, worker-side dispatchers and the service then exit."""
        for number in range(self.dispatchers()):
            self.end_dispatcher(number)

    def close(self) -> None:
        """Close the connection to the registry. Can be called repeatedly."""
        self._store.close()

    def __enter__(self) -> "ComputeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, places: Sequence[tuple[str, int]], key: bytes) -> StoreClient:
        why = []
        for host, port in places:
            try:
                with socket.create_connection((host, port), _REPLY_SECONDS) as tried:
                    self.here = tried.getsockname()[0]
            except OSError as error:
                why.append(f"{host}:{port} ({error.strerror or error})")
                continue
            store = StoreClient(key, host, port, _REPLY_SECONDS)
            try:
                store.find("dispatchers")
                return store
            except StoreTimeout:
                store.close()
                why.append(f"{host}:{port} (no answer: no data service, or one with another key)")
            except BaseException:
                store.close()
                raise
        raise ConnectionError(f"no data service answers at {', '.join(why)}")

    def _set(self, name: str, value: str) -> None:
        self._store.set(name, value.encode())

    def _find(self, name: str) -> bytes | None:
        return self._store.find(name)

    def _get(self, names: list[str], seconds: float) -> list[str]:
        return [value.decode() for value in self._store.get_many(names, seconds)]

    def _await(self, names: list[str], seconds: float, what: str) -> list[str]:
        try:
            return self._get(names, seconds)
        except StoreTimeout as error:
            lost = f": {', '.join(error.missing)} did not come" if error.missing else ", which does not answer any more"
            raise TimeoutError(f"waited {seconds:g} s for {what}{lost}") from None

    def _send(self, text: str, *values: object) -> None:
        if self._verbose >= 2:
            log.info(text, *values)
