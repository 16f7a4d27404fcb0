"""Upper bound on allreduce speed: each process sums its share of all vectors in place.

Every allreduce of vectors in shared memory must do at least this work, so none can be faster. The result is correct
only because all vectors are zeros. Needs a C compiler and Python's standard library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cases import FULL, Case

HEADER = 4096
SECONDS = 30.0


def compiler() -> str | None:
    """Return the C compiler's command, or None if there is no compiler."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)


def compiled() -> ctypes.CDLL:
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler found (cc, gcc, clang, or CC)")
    with tempfile.TemporaryDirectory(prefix="bench-limit-") as folder:
        library = os.path.join(folder, "limit.so")
        source = str(Path(__file__).with_suffix(".c"))
        subprocess.run([found, "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
        loaded = ctypes.CDLL(library)
    loaded.bare_loop.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
    loaded.barrier.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    loaded.exchange.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    loaded.bare_loop.restype = loaded.barrier.restype = None
    return loaded


def shared_file(rank: int, folder: str, nbytes: int) -> int:
    """Return a file descriptor of shared memory.

    Rank 0 creates the memory, and the other ranks locate it through a file in ``folder``.
    """
    note = Path(folder, "memory")
    if rank == 0:
        descriptor = os.memfd_create("bench-limit")
        os.ftruncate(descriptor, nbytes)
        note.with_suffix(".new").write_text(f"/proc/{os.getpid()}/fd/{descriptor}")
        note.with_suffix(".new").rename(note)
        return descriptor
    deadline = time.monotonic() + SECONDS
    while not note.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not make the shared memory within {SECONDS:g} s")
        time.sleep(0.01)
    return os.open(note.read_text(), os.O_RDWR)


class Peer:
    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.about = "bare loop in C, no synchronisation"
        self._library = compiled()
        # Offset the vectors, so that they do not map to the same cache sets.
        self._stride = max(FULL) + (64 << 10)
        descriptor = shared_file(self.rank, os.environ["LIMIT_FOLDER"], HEADER + self.size * self._stride)
        self._memory = mmap.mmap(descriptor, HEADER + self.size * self._stride)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._rounds = 0
        self.barrier()

    def barrier(self) -> None:
        self._rounds += 1
        self._library.barrier(self._start, self.size, self._rounds)

    def prepare(self, case: Case, mode: str) -> Callable[[], None]:
        count = case.bytes // 4
        if case.bytes > self._stride:
            raise ValueError(f"{case.bytes} bytes; at most {self._stride} are accepted")
        begins = [self._start + HEADER + m * self._stride for m in range(self.size)]
        ctypes.memset(begins[self.rank], 0, case.bytes)
        vectors = (ctypes.c_void_p * self.size)(*begins)
        share = -(-count // self.size)
        first, last = min(count, self.rank * share), min(count, (self.rank + 1) * share)
        loop, size = self._library.bare_loop, self.size
        return lambda: loop(vectors, size, first, last)

    def stop(self) -> None:
        """Do nothing, because the system frees the memory when the last process exits."""
