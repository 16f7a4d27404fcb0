"""Authentication of pickled objects between hosts: a member of the job has sent the object for this very call.

An object is sent with a MAC (HMAC-SHA256 under a key of this job) over the object, its sender, the operation with its
name, and the number of the call, that is, how often the ranks of the set have called this operation before. The number
is not sent, because all ranks count alike: calls with one name are sequential on each of them, and a call that fails,
fails on all. So altered, repeated, missing and reordered objects are detected.
"""

import hashlib
import hmac
import struct
import threading
from collections.abc import Sequence

from horovod.common.exceptions import HorovodInternalError

_NUMBER = struct.Struct("<Q")
_MAC = 32
_NAMES = 65536  # maximum number of operations to remember per set


class Numbers:
    """Call numbers by operation. No operation ever gets the same number twice. Pure apart from its state."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}  # most recently called operation last
        self._floor = 0  # greater than all numbers of forgotten operations

    def take(self, operation: str) -> int:
        """Return the number of a new call."""
        number = self._next.pop(operation, self._floor)
        self._next[operation] = number + 1
        if len(self._next) > _NAMES:
            self._floor = max(self._floor, self._next.pop(next(iter(self._next))))
        return number

    def give_back(self, operation: str, number: int) -> None:
        """Return the number of a call that did not take place."""
        if operation in self._next:
            self._next[operation] = number


class Seals:
    """Calls of one rank in one job. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        """Create the state of a job.

        Args:
            key: Key of this job only. Empty if objects do not leave the host; nothing is added to them then.
        """
        self._key = key
        self._numbers: dict[bytes, Numbers] = {}
        self._running: set[tuple[bytes, str]] = set()
        self._lock = threading.Lock()

    @property
    def overhead(self) -> int:
        """Number of bytes that ``Call.seal`` adds."""
        return _MAC if self._key else 0

    def begin(self, operation: str, ranks: Sequence[int], face: str = "") -> "Call":
        """Begin a call of ``operation`` by these world ranks, which all begin it too.

        Use the result as context manager.

        Args:
            operation: Operation as named in messages.
            ranks: World ranks of the set.
            face: Name of the frontend; operations of different frontends are different.

        Raises:
            ValueError: While another thread runs the same operation. The engine would refuse one of the two calls, and
                the other ranks could not tell which number is unused.
        """
        group = hashlib.sha256(f"{face}/{','.join(map(str, ranks))}".encode()).digest()
        with self._lock:
            if self._key and (group, operation) in self._running:
                raise ValueError(f"{operation} is still in flight; wait for it before you use the name again")
            self._running.add((group, operation))
            numbers = self._numbers.setdefault(group, Numbers())
            return Call(self._key, operation, group, numbers.take(operation), self)

    def end(self, operation: str, group: bytes, unused: int | None) -> None:
        """End a call. ``unused``: its number if it did not take place."""
        with self._lock:
            self._running.discard((group, operation))
            if unused is not None:
                self._numbers[group].give_back(operation, unused)


class Call:
    """Call of one operation on one rank. Leaving the context manager ends it."""

    def __init__(self, key: bytes, operation: str, group: bytes, number: int, seals: Seals) -> None:
        self._key = key
        self._operation = operation
        self._group = group
        self._number = number
        self._unused: int | None = None
        self._seals = seals
        name = hashlib.sha256(operation.encode(errors="surrogatepass")).digest()
        self._place = group + name + _NUMBER.pack(number)

    def cancel(self) -> None:
        """Record that the call has failed, as on all ranks."""
        self._unused = self._number

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *_: object) -> None:
        self._seals.end(self._operation, self._group, self._unused)

    def seal(self, data: bytes, rank: int, part: str) -> bytearray:
        """Return ``data`` with its MAC, ``overhead`` bytes longer.

        Args:
            data: Data to send.
            rank: World rank of the sender.
            part: Name of the part of this call's data.
        """
        return bytearray(data) + self._mac(data, rank, part) if self._key else bytearray(data)

    def open(self, sealed: memoryview, rank: int, part: str) -> memoryview:
        """Return the data of a sealed object. Raises HorovodInternalError naming the rank if the MAC is wrong."""
        if not self._key:
            return sealed
        data, mac = sealed[:-_MAC], sealed[-_MAC:]
        if not hmac.compare_digest(mac, self._mac(data, rank, part)):
            raise HorovodInternalError(
                f"{self._operation}: the object of rank {rank} was altered on its way, or is that of another call; "
                "HOROVOD_ENCRYPT_DATA=1 protects all data between hosts"
            )
        return data

    def _mac(self, data: bytes | memoryview, rank: int, part: str) -> bytes:
        made = hmac.new(self._key, self._place + f"{rank} {part}\0".encode(), "sha256")
        made.update(data)
        return made.digest()
