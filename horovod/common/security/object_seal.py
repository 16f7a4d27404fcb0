"""How pickled objects prove, between hosts, that a member of the job has sent them just now, for this very call.

What travels is the object and a MAC (HMAC-SHA256 under a key of this job) over it, its sender, the operation with its
name, and the number of the call: how often the ranks of the set have called this operation before. The number does not
travel, since the ranks count alike: calls of one name come one after the other on each of them, and one that fails,
fails on all. So an object that is altered, repeated, left out or brought into another order is noticed.
"""

import hashlib
import hmac
import struct
import threading
from collections.abc import Sequence

from horovod.common.exceptions import HorovodInternalError

_NUMBER = struct.Struct("<Q")
_MAC = 32
_NAMES = 65536  # that are remembered of each set


class Numbers:
    """The numbers of calls, by operation. No operation ever gets one twice. Pure, but for what it remembers."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}  # the operation that was called last at the end
        self._floor = 0  # above all numbers of operations that are forgotten

    def take(self, operation: str) -> int:
        number = self._next.pop(operation, self._floor)
        self._next[operation] = number + 1
        if len(self._next) > _NAMES:
            self._floor = max(self._floor, self._next.pop(next(iter(self._next))))
        return number

    def give_back(self, operation: str, number: int) -> None:
        """The call has not come about."""
        if operation in self._next:
            self._next[operation] = number


class Seals:
    """What one rank has called in one job. May be used by several threads."""

    def __init__(self, key: bytes) -> None:
        """``key``: of this job alone; empty where objects do not leave the host, then nothing is added to them."""
        self._key = key
        self._numbers: dict[bytes, Numbers] = {}
        self._running: set[tuple[bytes, str]] = set()
        self._lock = threading.Lock()

    @property
    def overhead(self) -> int:
        """Bytes that ``Call.seal`` adds."""
        return _MAC if self._key else 0

    def begin(self, operation: str, ranks: Sequence[int], face: str = "") -> "Call":
        """A call of ``operation``, named as in messages, by the world's ``ranks``, which all begin it too. Those of
        different faces are different operations. To be left as a context manager.

        Raises ValueError while another thread is in the same operation: of two such calls the engine would refuse
        either, and which number is then free again the other ranks could not tell.
        """
        group = hashlib.sha256(f"{face}/{','.join(map(str, ranks))}".encode()).digest()
        with self._lock:
            if self._key and (group, operation) in self._running:
                raise ValueError(f"{operation} is still in flight; wait for it before you use the name again")
            self._running.add((group, operation))
            numbers = self._numbers.setdefault(group, Numbers())
            return Call(self._key, operation, group, numbers.take(operation), self)

    def end(self, operation: str, group: bytes, unused: int | None) -> None:
        """The call is over. ``unused``: its number, if it has not come about."""
        with self._lock:
            self._running.discard((group, operation))
            if unused is not None:
                self._numbers[group].give_back(operation, unused)


class Call:
    """One operation of ``Seals``, on one rank. A context manager: leaving it ends the call."""

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
        """It has failed, as on all ranks."""
        self._unused = self._number

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *_: object) -> None:
        self._seals.end(self._operation, self._group, self._unused)

    def seal(self, data: bytes, rank: int, part: str) -> bytearray:
        """What travels of ``data``, which the world's ``rank`` sends: longer by ``overhead``. ``part``: of what is sent
        in this call."""
        return bytearray(data) + self._mac(data, rank, part) if self._key else bytearray(data)

    def open(self, sealed: memoryview, rank: int, part: str) -> memoryview:
        """Inverse of ``seal``. Raises HorovodInternalError naming the rank for anything else."""
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
