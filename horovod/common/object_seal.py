"""How pickled objects prove, between hosts, that a member of the job has sent them just now, for this operation.

What travels is the object, its number and a MAC (HMAC-SHA256 under a key of this job) over both, the sender and the
operation. A sender counts what it sends to a set of ranks, and a receiver takes each number once, in any order that
threads may bring about (the idea of the anti-replay window of RFC 4303, with the numbers still missing in its place).
"""

import hashlib
import hmac
import itertools
import struct
import threading
from collections.abc import Iterator, Sequence

from horovod.common.exceptions import HorovodInternalError

_NUMBER = struct.Struct("<Q")
_MAC = 32
_MISSING = 65536


class Seen:
    """The numbers of one sender that have come."""

    def __init__(self) -> None:
        self._next = 0
        self._missing: dict[int, None] = {}  # below ``_next``, rising

    def take(self, number: int) -> bool:
        """Whether ``number`` has not come before."""
        if number < self._next:
            return self._missing.pop(number, self) is None
        for skipped in range(max(self._next, number - _MISSING), number):
            self._missing[skipped] = None
        while len(self._missing) > _MISSING:
            del self._missing[next(iter(self._missing))]
        self._next = number + 1
        return True


class Seals:
    """What one rank has sealed and seen in one job. May be used by several threads."""

    def __init__(self, key: bytes) -> None:
        """``key``: of this job alone; empty where objects do not leave the host, then nothing is added to them."""
        self._key = key
        self._sent: dict[bytes, Iterator[int]] = {}
        self._seen: dict[tuple[bytes, int], Seen] = {}
        self._lock = threading.Lock()

    @property
    def overhead(self) -> int:
        """Bytes that ``seal`` adds."""
        return _NUMBER.size + _MAC if self._key else 0

    def seal(self, data: bytes, operation: str, rank: int, ranks: Sequence[int]) -> bytearray:
        """What travels of ``data``, which the world's ``rank`` sends to ``ranks``: longer by ``overhead``."""
        if not self._key:
            return bytearray(data)
        group = _digest(ranks)
        with self._lock:
            number = _NUMBER.pack(next(self._sent.setdefault(group, itertools.count())))
        return bytearray(data) + number + self._mac(data, number, operation, rank, group)

    def open(self, sealed: memoryview, operation: str, rank: int, ranks: Sequence[int]) -> memoryview:
        """Inverse of ``seal``. Raises HorovodInternalError naming the rank for anything else, and for what has come
        before."""
        if not self._key:
            return sealed
        group = _digest(ranks)
        data, number, mac = sealed[: -_MAC - _NUMBER.size], sealed[-_MAC - _NUMBER.size : -_MAC], sealed[-_MAC:]
        genuine = len(number) == _NUMBER.size and hmac.compare_digest(
            mac, self._mac(data, number, operation, rank, group)
        )
        if genuine:
            with self._lock:
                genuine = self._seen.setdefault((group, rank), Seen()).take(*_NUMBER.unpack(number))
        if not genuine:
            raise HorovodInternalError(
                f"{operation}: the object of rank {rank} was altered on its way; HOROVOD_ENCRYPT_DATA=1 protects all "
                "data between hosts"
            )
        return data

    def _mac(
        self, data: bytes | memoryview, number: bytes | memoryview, operation: str, rank: int, group: bytes
    ) -> bytes:
        made = hmac.new(self._key, group + f"{rank} {operation}\0".encode(errors="surrogatepass"), "sha256")
        made.update(number)
        made.update(data)
        return made.digest()


def _digest(ranks: Sequence[int]) -> bytes:
    return hashlib.sha256(",".join(map(str, ranks)).encode()).digest()
