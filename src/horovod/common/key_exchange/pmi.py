"""Key-value stores for short texts that launchers provide (boards), accessed through PMI-1 or PMIx.

PMI-1: Hydra (MPICH, Intel MPI, MVAPICH), ``srun --mpi=pmi2`` and others implement it. The process manager passes a
connected socket in PMI_FD. A request is a line ``cmd=... name=value ...``, and so is the answer. Published names are
visible to all processes immediately (publish_name, lookup_name). The alternatives put and get need a barrier, which
does not show which rank is missing. An MPI library in the same process uses the same socket. So this module never
leaves a message partly read and never changes the socket's flags. If the MPI library is in use, only the library sends
init and finalize.

PMIx: Open MPI, ``srun --mpi=pmix`` and jsrun implement it. This module loads the launcher's own library, so that both
sides have the same version. It first searches the files that the parent processes have mapped, and then searches by
name. No header is needed at build time, because the functions and structures are part of the stable interface of the
PMIx standard (PMIx 4.1, chapters 5 and 7). PMIx counts its users in a process, so an MPI library can also initialize
and finalize it at any time. After its last user has finalized PMIx, the hwloc inside prevents a second initialization.
So this module does not finalize PMIx until the process exits.
"""

import atexit
import base64
import ctypes
import hashlib
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from horovod.common.devices import mpi_libraries


def mapped_libraries(pid: int, library: str) -> list[str]:
    """Return the paths of a shared library, such as ``libmpi``, that a process has mapped.

    The list is empty if the paths are unknown.
    """
    try:
        with open(f"/proc/{pid}/maps") as file:
            found = re.findall(rf"(/\S*/{re.escape(library)}\.so[.\d]*)$", file.read(), re.MULTILINE)
    except OSError:  # the file cannot be read if the process has exited or belongs to another user
        return []
    return list(dict.fromkeys(found))


def mpi_is_in_use() -> bool:
    """Return True if MPI is initialized and not finalized in this process."""
    return any(started and not ended for started, ended in _states())


def mpi_was_used() -> bool:
    """Return True if MPI was initialized, even if it has been finalized since.

    MPI then sends the final messages to the process manager itself, in MPI_Finalize or when the process exits.
    """
    return any(started for started, _ in _states())


def _states() -> Iterator[tuple[bool, bool]]:
    for path in mpi_libraries.loaded():
        started, ended = ctypes.c_int(), ctypes.c_int()
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            library.MPI_Initialized(ctypes.byref(started))
            library.MPI_Finalized(ctypes.byref(ended))
        except (OSError, AttributeError):
            continue
        yield bool(started.value), bool(ended.value)


_REPLY_SECONDS = 10.0
_LONGEST = 4096
MAX_VALUE = 700
"""Maximum bytes of a value: 1024 characters after base64, with a margin for managers that allow less than they say."""


class PmiError(RuntimeError):
    """Raised if the process manager does not answer, or if its answer violates PMI-1."""


class PmiBoard:
    """Key-value store of a launcher that supports PMI-1. ``publish`` and ``find`` are thread-safe."""

    name = "PMI"

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """Connect to the process manager. Raises PmiError if PMI_FD is not its socket."""
        text = (os.environ if env is None else env).get("PMI_FD", "")
        if not text.isdecimal():
            raise PmiError(f"PMI_FD must be the number of a descriptor, got {text!r}")
        self._fd = int(text)
        self._lock = threading.Lock()
        if not mpi_is_in_use():
            self._call("init pmi_version=1 pmi_subversion=1")
        self._scope = self._call("get_my_kvsname").get("kvsname", "")
        if not self._scope:
            raise PmiError("the process manager does not tell the name of the job's key-value space")
        _finalize_at_exit(self)

    def publish(self, name: str, value: bytes) -> None:
        """Publish a value of at most MAX_VALUE bytes. Each name can be used once. Raises PmiError on failure."""
        text = base64.urlsafe_b64encode(value).decode().rstrip("=")
        answer = self._call(f"publish_name service={self._service(name)} port={text}")
        if not _is_ok(answer):
            raise PmiError(f"the process manager refuses to publish a name: {answer.get('msg', answer)}")

    def find(self, name: str, rank: int) -> bytes | None:
        """Return the value that ``rank`` published under this name, or None if there is none yet. Never blocks."""
        del rank
        answer = self._call(f"lookup_name service={self._service(name)}")
        text = answer.get("port", "")
        if not _is_ok(answer) or not text:
            return None
        try:
            return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            return None

    def finalize(self) -> None:
        """Send "finalize" to the process manager, so that Hydra does not treat the exit as a crash."""
        self._call("finalize")

    def _service(self, name: str) -> str:
        # Hash the names, because they are limited to 64 characters and other jobs may see them on the name server.
        return "horovod-" + hashlib.sha256(f"{self._scope}/{name}".encode()).hexdigest()[:32]

    def _call(self, command: str) -> dict[str, str]:
        with self._lock:
            try:
                os.write(self._fd, f"cmd={command}\n".encode())
                line = self._read_line()
            except OSError as error:
                raise PmiError(f"the process manager cannot be reached by PMI_FD: {error.strerror}") from None
        return dict(word.partition("=")[::2] for word in line.split())

    def _read_line(self) -> str:
        deadline = time.monotonic() + _REPLY_SECONDS
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise PmiError(f"no answer from the process manager within {_REPLY_SECONDS:g} s")
            # Reading past the end of the line is safe, because the process manager sends nothing after its answer.
            data = os.read(self._fd, _LONGEST)
            if not data or len(line) > _LONGEST:
                raise PmiError("the process manager has closed the connection PMI_FD")
            line += data
        return line.decode(errors="replace")


def _is_ok(reply: Mapping[str, str]) -> bool:
    """Return True if the answer indicates success: rc=0 from Hydra, info=ok from Slurm."""
    return reply.get("rc", "0") == "0" and reply.get("info", "ok") == "ok"


_open: list[PmiBoard] = []


def _finalize_at_exit(board: PmiBoard) -> None:
    if not _open:
        atexit.register(_finalize, os.getpid())
    _open[:] = [board]


def _finalize(pid: int) -> None:
    # After an exception, do not send "finalize": Hydra must see a crash, because other ranks may wait for this rank.
    # If MPI was used, MPI itself sends "finalize", in MPI_Finalize or (MPICH 5) at the end of the process.
    if os.getpid() != pid or hasattr(sys, "last_type") or mpi_was_used():
        return
    try:
        _open[0].finalize()
    except PmiError:
        pass  # ignore the error, because the process manager has ended or has already received finalize


_SUCCESS = 0
_STRING, _INT, _GLOBAL = 3, 6, 3  # constants from PMIx: PMIX_STRING, PMIX_INT and PMIX_GLOBAL
_WAIT_SECONDS = 2
_MAX_ANCESTORS = 16
"""Maximum number of ancestors to search for a loaded MPI library."""


class PmixError(RuntimeError):
    """Raised if the PMIx library is missing or one of its functions fails."""


class _Proc(ctypes.Structure):
    _fields_ = [("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    # In PMIx's value struct, a union of at most 32 bytes follows the type. Only its first member, ``pointer``, is used.
    _fields_ = [("type", ctypes.c_uint16), ("pointer", ctypes.c_void_p), ("rest", ctypes.c_uint64 * 8)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class PmixBoard:
    """Key-value store of a launcher that supports PMIx. ``publish`` and ``find`` are thread-safe."""

    name = "PMIx"

    def __init__(self) -> None:
        """Connect to the job's PMIx server. Raises PmixError if the server or the library is missing."""
        self._lock = threading.Lock()
        self._library = _load()
        self._me = _Proc()
        self._check("PMIx_Init", self._library.PMIx_Init(ctypes.byref(self._me), None, ctypes.c_size_t(0)))
        atexit.register(self._finalize, os.getpid())

    def publish(self, name: str, value: bytes) -> None:
        """Publish a value of at most MAX_VALUE bytes. Raises PmixError on failure."""
        text = ctypes.create_string_buffer(value.hex().encode())
        entry = _Value(type=_STRING, pointer=ctypes.addressof(text))
        with self._lock:
            code = self._library.PMIx_Put(ctypes.c_uint8(_GLOBAL), _key(name), ctypes.byref(entry))
            self._check("PMIx_Put", code)
            self._check("PMIx_Commit", self._library.PMIx_Commit())

    def find(self, name: str, rank: int) -> bytes | None:
        """Return the value that ``rank`` has published under this name, or None if there is none yet.

        The server may wait a few seconds for the value before it answers.
        """
        who = _Proc(self._me.nspace, rank)
        # Set a timeout, because the server's default (2 s in Open MPI) varies and can be infinite.
        wait = _Info(b"pmix.timeout", 0, _Value(type=_INT, pointer=_WAIT_SECONDS))
        found = ctypes.POINTER(_Value)()
        with self._lock:
            code = self._library.PMIx_Get(
                ctypes.byref(who), _key(name), ctypes.byref(wait), ctypes.c_size_t(1), ctypes.byref(found)
            )
        if code != _SUCCESS or not found or found.contents.type != _STRING or not found.contents.pointer:
            return None
        try:
            # Do not free the result: it is small, and the function that frees it differs between PMIx versions.
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
    import ctypes.util  # imported here because the import is slow and rarely needed

    yield from dict.fromkeys(path for pid in _ancestors() for path in mapped_libraries(pid, "libpmix"))
    named = ctypes.util.find_library("pmix")
    if named is not None:
        yield named


def _ancestors() -> Iterator[int]:
    """Yield the process ids of this process and its ancestors. Any of them might have loaded MPI."""
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
