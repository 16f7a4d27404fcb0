"""Board for short texts between the processes of a job, over PMIx (Open MPI, srun --mpi=pmix, jsrun).

The launcher's own library is used, so that both sides have the same version. It is searched among the files that our
parent processes have mapped, and only then by name. Nothing is compiled against it: the functions and structures used
are part of the stable interface of the PMIx standard (PMIx 4.1, chapters 5 and 7).

PMIx counts its users in a process, so an MPI library may initialize and finalize it before or after us. It cannot be
initialized again after its last user has finalized it (hwloc inside does not survive that), so it stays in use until
the process exits.
"""

import atexit
import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

from horovod.common.handover.mpi import mapped

_SUCCESS = 0
_STRING, _INT, _GLOBAL = 3, 6, 3  # PMIX_STRING, PMIX_INT, PMIX_GLOBAL
_WAIT_SECONDS = 2
_MAX_ANCESTORS = 16
MAX_VALUE = 700
"""Maximum bytes of a value, as on other boards."""


class PmixError(RuntimeError):
    """There is no library, or it returned an error."""


class _Proc(ctypes.Structure):
    _fields_ = [("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    # The union after the type has at most 32 bytes so far; only its first member, a pointer, is used.
    _fields_ = [("type", ctypes.c_uint16), ("pointer", ctypes.c_void_p), ("rest", ctypes.c_uint64 * 8)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class PmixBoard:
    """Board over PMIx. ``publish`` and ``find`` are thread-safe."""

    name = "PMIx"

    def __init__(self) -> None:
        """Connect to the job's PMIx server. Raises PmixError if there is none, or no library."""
        self._lock = threading.Lock()
        self._library = _load()
        self._me = _Proc()
        self._check("PMIx_Init", self._library.PMIx_Init(ctypes.byref(self._me), None, ctypes.c_size_t(0)))
        atexit.register(self._finalize, os.getpid())

    def publish(self, name: str, value: bytes) -> None:
        """Publish a value of at most MAX_VALUE bytes. Raises PmixError."""
        text = ctypes.create_string_buffer(value.hex().encode())
        entry = _Value(type=_STRING, pointer=ctypes.addressof(text))
        with self._lock:
            code = self._library.PMIx_Put(ctypes.c_uint8(_GLOBAL), _key(name), ctypes.byref(entry))
            self._check("PMIx_Put", code)
            self._check("PMIx_Commit", self._library.PMIx_Commit())

    def find(self, name: str, rank: int) -> bytes | None:
        """Return what ``rank`` has published under this name; None if nothing yet.

        The server may wait for it for some seconds.
        """
        who = _Proc(self._me.nspace, rank)
        # Without a timeout, servers choose one: 2 s in Open MPI; others may wait forever.
        wait = _Info(b"pmix.timeout", 0, _Value(type=_INT, pointer=_WAIT_SECONDS))
        found = ctypes.POINTER(_Value)()
        with self._lock:
            code = self._library.PMIx_Get(
                ctypes.byref(who), _key(name), ctypes.byref(wait), ctypes.c_size_t(1), ctypes.byref(found)
            )
        if code != _SUCCESS or not found or found.contents.type != _STRING or not found.contents.pointer:
            return None
        try:
            # Not freed, because it is only a few hundred bytes and the function for it differs between versions.
            return bytes.fromhex(ctypes.string_at(found.contents.pointer).decode())
        except ValueError:
            return None

    def _check(self, what: str, code: int) -> None:
        if code != _SUCCESS:
            self._library.PMIx_Error_string.restype = ctypes.c_char_p
            text = self._library.PMIx_Error_string(ctypes.c_int(code)) or b""
            raise PmixError(f"{what} fails: {text.decode(errors='replace')} ({code})")

    def _finalize(self, pid: int) -> None:
        if os.getpid() == pid:
            self._library.PMIx_Finalize(None, ctypes.c_size_t(0))


def _key(name: str) -> bytes:
    return f"horovod.{name}".encode()


def _load() -> Any:
    tried = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            library.PMIx_Init  # noqa: B018 - raises AttributeError if the library lacks it
            return library
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
    raise PmixError("; ".join(tried) or "the launcher's library libpmix.so is not found")


def _candidates() -> Iterator[str]:
    import ctypes.util  # imported here, because it is seldom needed and imports much of the standard library

    yield from dict.fromkeys(path for pid in _ancestors() for path in mapped(pid, "libpmix"))
    named = ctypes.util.find_library("pmix")
    if named is not None:
        yield named


def _ancestors() -> Iterator[int]:
    """Yield the ids of this process (MPI may be loaded already) and of its ancestors."""
    pid = os.getpid()
    for _ in range(_MAX_ANCESTORS):
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if pid <= 1:
            return
