"""One checkpoint, one file: written so that it is there whole or not at all, and read only if it is whole.

    payload | length of the payload (8 bytes, big-endian) | SHA-256 of payload and length (32) | b"HVDCKPT1"

With a key (checkpoint_trust.py) an HMAC-SHA256 is in the place of the checksum, and the end is b"HVDCKPT2".

The end is written last, and the file gets its name when all of it is on the disk (fsync before and after the rename).
So a file with a name that is torn has been damaged later, by a disk or a copy that was interrupted.

Until then it has a name of its writer's own (process and a random number), and its writer holds a lock on it: who has
lost its place as rank 0 may still be writing when the next one begins, on another host perhaps.
"""

import contextlib
import errno
import fcntl
import hashlib
import hmac
import io
import os
import re
import secrets
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from horovod.common.elastic.checkpoint_trust import PLAIN, SEALED, Sum, Trust

OWN = Trust()
_LENGTH = struct.Struct(">Q")
_END = _LENGTH.size + hashlib.sha256().digest_size + len(PLAIN)
_PIECE = 1 << 20
_NAME = re.compile(r"step-(\d{12,})\.ckpt", re.ASCII)
_UNFINISHED = re.compile(r"\.(?:step-\d{12,}|job)\.\d+(?:\.[0-9a-f]+)?\.tmp")
ABANDONED = 3600.0  # s without a change, where file systems know no locks


class TornCheckpointError(ValueError):
    """The file is not what was written."""


def name_of(step: int) -> str:
    """The file's name; names sort as steps do, up to 12 digits."""
    return f"step-{step:012d}.ckpt"


def steps_of(names: Iterable[str]) -> list[int]:
    """Of those names that are a checkpoint's, the last one first."""
    return sorted((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), reverse=True)


def steps_in(directory: Path) -> list[int]:
    """Of the files that are there, the last one first. Empty where there is no such directory."""
    try:
        return steps_of(os.listdir(directory))
    except FileNotFoundError:
        return []


def begin(directory: Path, stem: str) -> tuple[Path, io.FileIO]:
    """A new file that is not finished yet, and that nobody takes for left behind as long as it is open. Raises
    OSError."""
    while True:
        path = directory / f".{stem}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        # Others must not be able to change it, whatever the umask: it would be refused (checkpoint_trust.py).
        file = io.FileIO(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o644))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = path.exists()
        except BlockingIOError:  # somebody found it before it was locked, and is about to remove it
            there = False
        except OSError:  # a file system without locks
            there = True
        if there:
            return path, file
        file.close()


def is_unfinished(name: str) -> bool:
    """Is it the name of a file that was begun?"""
    return _UNFINISHED.fullmatch(name) is not None


def remove_unfinished(directory: Path) -> None:
    """What writers have left behind that were killed; nothing that somebody still writes."""
    for name in os.listdir(directory):
        if is_unfinished(name):
            with contextlib.suppress(OSError):
                _remove_abandoned(directory / name)


def open_plain(path: Path) -> io.FileIO:
    """Open a plain file for reading. Raises TornCheckpointError for a pipe or device, and OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise TornCheckpointError(f"{path} is no plain file")
    return io.FileIO(fd)


def made_in(directory: Path) -> os.stat_result:
    """The status of a file of mode 0600 that is made there, and removed at once. Raises OSError."""
    path, file = begin(directory, "job")
    with file:
        try:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(file.fileno(), 0o600)
            return os.fstat(file.fileno())
        finally:
            os.unlink(path)


def _remove_abandoned(path: Path) -> None:
    with io.FileIO(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            locked = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
            if locked or time.time() - os.fstat(file.fileno()).st_mtime < ABANDONED:
                return
        os.unlink(path)


def put_aside(directory: Path, steps: list[int]) -> Path:
    """Moves these into a new folder of the directory, and returns that: ``earlier-1`` or a higher number."""
    number = 1
    while (folder := directory / f"earlier-{number}").exists():
        number += 1
    folder.mkdir()
    for step in steps:
        with contextlib.suppress(FileNotFoundError):
            os.rename(directory / name_of(step), folder / name_of(step))
    return folder


def write(directory: Path, step: int, dump: Callable[[IO[bytes]], None], trust: Trust = OWN) -> Path:
    """Writes what ``dump`` writes into the file that it is given. Raises what that raises, and OSError; nothing is left
    then, and a file of this step that was there before still is."""
    target = directory / name_of(step)
    unfinished, file = begin(directory, target.stem)
    try:
        with file:
            write_into(file, step, dump, trust)
            os.fsync(file.fileno())
            os.rename(unfinished, target)  # while it is locked
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
    _sync_directory(directory)
    return target


def write_into(file: io.FileIO, step: int, dump: Callable[[IO[bytes]], None], trust: Trust = OWN) -> None:
    """What ``dump`` writes, and the end, from where the file is. Raises what that raises, and OSError."""
    whole = _Summed(file, trust.sum(step))
    buffered = io.BufferedWriter(whole, _PIECE)
    dump(buffered)
    buffered.flush()
    buffered.detach()
    _all(file, whole.end() + trust.magic)


def read(directory: Path, step: int, load: Callable[[IO[bytes]], Any], trust: Trust = OWN) -> Any:
    """What ``load`` makes of the payload. Nothing is handed to it before the checksum has been found right. Raises
    TornCheckpointError saying what is wrong, UntrustedCheckpointError, OSError, and what ``load`` raises."""
    path = directory / name_of(step)
    with open_plain(path) as file:
        trust.check_owner(file.fileno(), str(path), lambda: made_in(directory))
        if not trust.needs_copy(file.fileno()):
            return read_from(file, str(path), step, load, trust)
        with tempfile.TemporaryFile(prefix="horovod-checkpoint-", buffering=0) as copy:
            while piece := file.read(_PIECE):
                _all(copy, piece)
            return read_from(copy, str(path), step, load, trust)


def read_from(file: io.FileIO, name: str, step: int, load: Callable[[IO[bytes]], Any], trust: Trust = OWN) -> Any:
    """As ``read``, of a file that is open for reading. ``name``: what errors call it."""
    with open(file.fileno(), "rb", closefd=False) as buffered:
        buffered.seek(0)
        length = _checked(buffered, name, step, trust)
    return load(io.BufferedReader(_Payload(file, length), _PIECE))


def _checked(file: io.BufferedReader, name: str, step: int, trust: Trust) -> int:
    """The length of the payload."""
    size = os.fstat(file.fileno()).st_size
    if size < _END:
        raise TornCheckpointError(f"{name} has {size} bytes, which is less than the end of a checkpoint")
    file.seek(size - len(PLAIN))
    magic = file.read(len(PLAIN))
    if magic not in (PLAIN, SEALED):
        raise TornCheckpointError(f"{name} does not end as a checkpoint does: it is torn, or no checkpoint")
    trust.check_end(magic, name)
    file.seek(0)
    summed = trust.sum(step)
    left = size - _END + _LENGTH.size
    while left:
        piece = file.read(min(_PIECE, left))
        if not piece:
            raise TornCheckpointError(f"{name} became shorter while it was read")
        summed.update(piece)
        left -= len(piece)
    if not hmac.compare_digest(file.read(len(summed.digest())), summed.digest()):
        raise TornCheckpointError(f"{name} is torn: its checksum does not fit to what is in it")
    file.seek(size - _END)
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    if length != size - _END:
        raise TornCheckpointError(f"{name} says that it has {length} bytes, and has {size - _END}")
    return int(length)


class _Summed(io.RawIOBase):
    """Counts and sums what goes through to ``file``."""

    def __init__(self, file: io.FileIO, summed: Sum) -> None:
        self._file = file
        self._summed = summed
        self._length = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._length

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        _all(self._file, view)
        self._summed.update(view)
        self._length += len(view)
        return len(view)

    def end(self) -> bytes:
        length = _LENGTH.pack(self._length)
        self._summed.update(length)
        return length + self._summed.digest()


class _Payload(io.RawIOBase):
    """The beginning of a file, as if there were nothing after it."""

    def __init__(self, file: io.FileIO, length: int) -> None:
        self._file = file
        self._length = length
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._length}[whence]
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, memory: Any) -> int:
        view = memoryview(memory).cast("B")
        count = os.preadv(self._file.fileno(), [view[: max(0, self._length - self._place)]], self._place)
        self._place += count
        return count


def _all(file: io.FileIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
