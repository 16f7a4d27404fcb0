"""Where the parts of a data service find one another: its dispatchers, its workers, and the training that reads of it.
A store as that of a job, with a key of its own: who does not have it learns nothing and changes nothing. No framework.

Names in the store: ``dispatcher.D`` its address; ``worker.D.W`` that of a worker; ``over.D`` the dispatcher is
not needed any more; ``left.D.W`` the worker knows. Of dispatchers on the training side also ``reader.D.R`` who reads of
it, ``lives.D.R`` that this one lives, ``done.D.R`` that it does not read any more."""

import contextlib
import itertools
import logging
import socket
import time
import uuid
from collections.abc import Collection, Mapping, Sequence

from horovod.common.network.endpoints import to_listen
from horovod.common.network.interfaces import scan
from horovod.common.store import StoreClient, StoreServer, StoreTimeout

log = logging.getLogger("horovod.data")

Addresses = Mapping[str, Sequence[tuple[str, int]]]
"""By interface: (address, port)."""

_HEAR_SECONDS = 20.0  # a wait without a deadline asks so often whether the service is still there
_ANSWER_SECONDS = 5.0
_UNHEARD = 3  # so many of these in a row without an answer: it is gone
_LEAVE_SECONDS = 10.0
_READERS_SECONDS = 1.0  # between two looks at who still reads


class ComputeService:
    """Serves until ``close``, in a thread of its own."""

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Collection[str] | None = None
    ) -> None:
        """``key``: 32 bytes, or any number. ``nics``: interfaces to listen on; None: all. Raises ValueError naming an
        interface that is not there, and numbers below 1."""
        for name, value in (("dispatchers", dispatchers), ("workers_per_dispatcher", workers_per_dispatcher)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, accepted is an integer of at least 1")
        found: dict[str, list[str]] = {}  # those that are up, devices of their own first, the loopback last
        for place in to_listen(scan(), "", alone=False):
            if ":" not in place.address:
                found.setdefault(place.interface, []).append(place.address)
        if lost := sorted(set(nics or ()) - set(found)):
            raise ValueError(f"nics has {', '.join(lost)}, accepted are some of {', '.join(sorted(found))}")
        wanted = {name: texts for name, texts in found.items() if nics is None or name in nics}
        hosts = ["0.0.0.0"] if nics is None else [text for texts in wanted.values() for text in texts]
        listeners = [socket.create_server((hosts[0], 0))]
        port = listeners[0].getsockname()[1]
        try:
            listeners += [socket.create_server((host, port)) for host in hosts[1:]]
        except OSError:
            for one in listeners:
                one.close()
            raise
        self._server = StoreServer(key, listeners=listeners)
        self._addresses = {name: [(text, port) for text in texts] for name, texts in wanted.items()}
        try:
            self._client = ComputeClient(self._addresses, key)
            self._client._set("dispatchers", str(dispatchers))
        except BaseException:
            self._server.close()
            raise
        self._workers = [f"{one}.{index}" for one in range(dispatchers) for index in range(workers_per_dispatcher)]

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """What a client is given."""
        return self._addresses

    def wait_for_shutdown(self) -> None:
        """Returns when no dispatcher is needed any more, and the workers that are still there know it."""
        for number in range(self._client.dispatchers()):
            self._client.wait_for_shutdown(number)
        with contextlib.suppress(StoreTimeout):
            names = [name for name in self._workers if self._client._find(f"worker.{name}") is not None]
            self._client._get([f"left.{name}" for name in names], _LEAVE_SECONDS)

    def close(self) -> None:
        """Serves no more. May be called again."""
        self._client.close()
        self._server.close()

    def __enter__(self) -> "ComputeService":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ComputeClient:
    """Of a service: ``addresses`` are its, ``key`` is its; ``verbose`` of 2 or more tells the log ``horovod.data`` at
    level info what it does. Used by one thread at a time."""

    def __init__(
        self,
        addresses: Addresses | None = None,
        key: bytes = b"",
        verbose: int = 1,
        *,
        compute_addresses: Addresses | None = None,
    ) -> None:
        """``compute_addresses``: another name of ``addresses``, for programs that call it so.

        Raises ValueError without an address, ConnectionError naming the addresses when none answers, or has another
        key, TypeError for both names."""
        if addresses is not None and compute_addresses is not None:
            raise TypeError("addresses and compute_addresses are names of the same, accepted is one of them")
        addresses = (compute_addresses if addresses is None else addresses) or {}
        places = [(host, port) for found in addresses.values() for host, port in found]
        if not places:
            raise ValueError(f"addresses is {dict(addresses)!r}, accepted is at least one address")
        self._verbose = verbose
        self.here = ""
        """The address of this host that others of the service can reach, as far as its own tells."""
        # The loopback of another host is ours here.
        self._store = self._connect(sorted(places, key=lambda place: place[0].startswith("127.")), key)

    def dispatchers(self) -> int:
        """How many the service has."""
        return int(self._get(["dispatchers"], _ANSWER_SECONDS)[0])

    def register_dispatcher(self, number: int, address: str) -> None:
        """It is at ``address``, HOST:PORT."""
        self._say("dispatcher %d is at %s", number, address)
        self._set(f"dispatcher.{number}", address)

    def wait_for_dispatcher_registration(self, number: int, timeout: float) -> str:
        """Its address. Raises TimeoutError after so many seconds."""
        return self._await([f"dispatcher.{number}"], timeout, f"dispatcher {number} of the data service")[0]

    def register_worker_for_dispatcher(self, number: int, index: int, address: str = "") -> None:
        """Worker ``index`` of dispatcher ``number`` is there, at HOST:PORT."""
        self._say("worker %d of dispatcher %d is there", index, number)
        self._set(f"worker.{number}.{index}", address)

    def find_worker(self, number: int, index: int) -> str:
        """Where worker ``index`` of dispatcher ``number`` is or has been; empty: there has been none."""
        return (self._find(f"worker.{number}.{index}") or b"").decode()

    def wait_for_dispatcher_worker_registration(self, number: int, workers: int, timeout: float) -> None:
        """Returns when so many workers of the dispatcher are there. Raises TimeoutError after so many seconds, naming
        those that lack."""
        names = [f"worker.{number}.{index}" for index in range(workers)]
        self._await(names, timeout, f"workers of dispatcher {number} of the data service")

    def wait_for_shutdown(self, number: int) -> None:
        """Returns when the dispatcher is not needed any more; or the service is gone, with a warning in the log."""
        unheard = 0
        while True:
            try:
                self._get([f"over.{number}"], _HEAR_SECONDS)
                return
            except StoreTimeout as error:
                unheard = 0 if error.missing else unheard + 1
                if unheard == _UNHEARD:
                    log.warning("the data service is gone: %s", error)
                    return

    def leave(self, number: int, index: int) -> None:
        """Worker ``index`` of dispatcher ``number`` ends."""
        with contextlib.suppress(StoreTimeout):
            self._set(f"left.{number}.{index}", "")

    def register_reader(self, number: int) -> int:
        """One more reads of the dispatcher: its number among them."""
        me = uuid.uuid4().hex.encode()
        return next(one for one in itertools.count() if self._store.set_first(f"reader.{number}.{one}", me) == me)

    def say_reader_lives(self, number: int, reader: int) -> None:
        """To be said again and again, while it reads."""
        with contextlib.suppress(StoreTimeout):
            self._set(f"lives.{number}.{reader}", uuid.uuid4().hex)

    def end_reader(self, number: int, reader: int) -> None:
        """It does not read any more."""
        with contextlib.suppress(StoreTimeout):
            self._set(f"done.{number}.{reader}", "")

    def wait_for_readers(self, number: int, expected: int, patience: float) -> None:
        """Returns when at least ``expected`` readers have come, and none of them reads any more. One that has not come,
        or has not said that it lives, for ``patience`` seconds is not waited for, and a warning in the log says so."""
        begun = time.monotonic()
        lives: dict[int, tuple[bytes | None, float]] = {}  # what it said last, and when that was new
        with contextlib.suppress(StoreTimeout):  # the service is gone, and with it the workers
            while True:
                readers = list(itertools.takewhile(lambda one: self._find(f"reader.{number}.{one}"), itertools.count()))
                now = time.monotonic()
                for one in readers:
                    said = self._find(f"lives.{number}.{one}")
                    if one not in lives or lives[one][0] != said:
                        lives[one] = said, now
                reading = [one for one in readers if self._find(f"done.{number}.{one}") is None]
                heard = [one for one in reading if now - lives[one][1] < patience]
                absent = max(0, expected - len(readers))
                if not heard and (not absent or now - begun >= patience):
                    break
                awaited = [f"done.{number}.{one}" for one in heard] or [f"reader.{number}.{len(readers)}"]
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
        """Whether the dispatcher is not needed any more, waiting for it so long."""
        try:
            self._get([f"over.{number}"], seconds)
            return True
        except StoreTimeout:
            return False

    def end_dispatcher(self, number: int) -> None:
        """It is not needed any more: its workers end."""
        self._say("dispatcher %d is not needed any more", number)
        self._set(f"over.{number}", "")

    def dispatcher_ends(self, number: int) -> None:
        """The same, said by the dispatcher, when all have read of it: no error where the service is gone already, and
        with it the workers."""
        with contextlib.suppress(StoreTimeout):
            self.end_dispatcher(number)

    def shutdown(self) -> None:
        """None is needed any more: workers, dispatchers on their side and the service end."""
        for number in range(self.dispatchers()):
            self.end_dispatcher(number)

    def close(self) -> None:
        """May be called again."""
        self._store.close()

    def __enter__(self) -> "ComputeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, places: Sequence[tuple[str, int]], key: bytes) -> StoreClient:
        why = []
        for host, port in places:
            try:
                with socket.create_connection((host, port), _ANSWER_SECONDS) as tried:
                    self.here = tried.getsockname()[0]
            except OSError as error:
                why.append(f"{host}:{port} ({error.strerror or error})")
                continue
            store = StoreClient(key, host, port, _ANSWER_SECONDS)
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

    def _say(self, text: str, *values: object) -> None:
        if self._verbose >= 2:
            log.info(text, *values)
