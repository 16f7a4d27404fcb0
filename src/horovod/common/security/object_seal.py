"""Seals, which prove that a pickled object comes from a rank of this job and belongs to the current call.

The sender adds a MAC to each object (HMAC-SHA256 under a key of this job). The MAC covers the object, its sender, the
operation with its name, and the call's sequence number: how often the ranks of the set have called this operation
before. The number is not sent, because all ranks count the same calls. Calls with the same name are sequential on each
rank, and a call that fails on one rank fails on all ranks. This detects altered, repeated, missing and reordered
objects.
"""

import hashlib
import hmac
import struct
import threading
from collections.abc import Sequence

from horovod.common.exceptions import HorovodInternalError

_NUMBER = struct.Struct("<Q")
_MAC = 32
_NAMES = 65536  # maximum number of operations to remember per process set


class Numbers:
    """Counter that gives each call of an operation a sequence number, which it never reuses."""

    def __init__(self) -> None:
        # Next sequence number of each operation, ordered from the least to the most recently used operation.
        self._next: dict[str, int] = {}
        # First sequence number of an operation that is not in `_next`, larger than those of all removed operations.
        self._floor = 0

    def take(self, operation: str) -> int:
        """Assign a sequence number to a new call of the operation, and return it."""
        number = self._next.pop(operation, self._floor)
        self._next[operation] = number + 1
        if len(self._next) > _NAMES:
            self._floor = max(self._floor, self._next.pop(next(iter(self._next))))
        return number

    def give_back(self, operation: str, number: int) -> None:
        """Take back a sequence number that no rank has used, so that the operation's next call gets it."""
        if operation in self._next:
            self._next[operation] = number


class Seals:
    """Creates and verifies seals for one rank of a job. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        """Create the seals of a new job, in which all call counters are zero.

        Args:
            key: Secret key of this job only. Empty for a job on one host, whose objects need no MAC.
        """
        self._key = key
        self._numbers: dict[bytes, Numbers] = {}
        self._running: set[tuple[bytes, str]] = set()
        self._lock = threading.Lock()

    @property
    def overhead(self) -> int:
        """Number of bytes that ``Call.seal`` adds."""
        return _MAC if self._key else 0

    def begin(self, operation: str, ranks: Sequence[int], frontend: str = "") -> "Call":
        """Start a call of ``operation`` on this rank. All ranks in ``ranks`` must start the same call.

        Use the result as a context manager.

        Args:
            operation: Name of the operation in messages.
            ranks: World ranks of the set.
            frontend: Name of the frontend. Calls of different frontends are counted separately.

        Raises:
            ValueError: If another thread is running the same operation. The engine would reject one of the two calls,
                and the other ranks would not know whose number is unused.
        """
        group = hashlib.sha256(f"{frontend}/{','.join(map(str, ranks))}".encode()).digest()
        with self._lock:
            if self._key and (group, operation) in self._running:
                raise ValueError(f"{operation} is still in flight; wait for it before you use the name again")
            self._running.add((group, operation))
            numbers = self._numbers.setdefault(group, Numbers())
            return Call(self._key, operation, group, numbers.take(operation), self)

    def end(self, operation: str, group: bytes, unused: int | None) -> None:
        """Record that a call has ended. If it failed on all ranks, ``unused`` is its number, which can be reused."""
        with self._lock:
            self._running.discard((group, operation))
            if unused is not None:
                self._numbers[group].give_back(operation, unused)


class Call:
    """One call of an operation on this rank. It is a context manager that ends the call on exit."""

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
        """Record that the call has failed on all ranks, so that the next call reuses its sequence number."""
        self._unused = self._number

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *_: object) -> None:
        self._seals.end(self._operation, self._group, self._unused)

    def seal(self, data: bytes, rank: int, part: str) -> bytearray:
        """Return ``data`` with its MAC appended, which makes it ``overhead`` bytes longer.

        Args:
            data: Data to send.
            rank: World rank of the sender.
            part: Name of this piece of data if the call sends several pieces.
        """
        return bytearray(data) + self._mac(data, rank, part) if self._key else bytearray(data)

    def open(self, sealed: memoryview, rank: int, part: str) -> memoryview:
        """Return the data of a sealed object. Raises HorovodInternalError naming the sender if the MAC is wrong."""
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
