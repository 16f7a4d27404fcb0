"""Checkpoint files, written atomically, and read only if they are complete and trusted.

Format::

    payload | length of the payload (8 bytes, big-endian) | SHA-256 of payload and length (32) | b"HVDCKPT1"

With a key, an HMAC-SHA256 replaces the checksum, and the last bytes are b"HVDCKPT2".

The checksum is written last. The file gets its final name only after its content is on disk, with an fsync before and
after the rename. If a file with its final name is incomplete, a disk or an interrupted copy must have damaged it later.

Before the rename, the file has a temporary name that is unique to its writer (process id and a random number), and the
writer holds a lock on the file. Unique names are necessary because a former rank 0 might still be writing when the next
rank 0 begins, possibly on another host.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import read_key_file

# Rules that decide which checkpoints a rank can load.
#
# A checkpoint is a pickle, so loading it executes code chosen by the process that wrote it.
#
# Files are rejected if another user owns them or if every user can write to them. Some file systems report one owner
# for all files, or show all files as writable by everyone. There, a file is accepted if a newly created file has the
# same owner and mode. If a key is set, checkpoints must carry a MAC, in object stores as well.

_OWNERS, _KEY_FILE = "HOROVOD_CHECKPOINT_OWNERS", "HOROVOD_CHECKPOINT_KEY_FILE"
PLAIN, SEALED = b"HVDCKPT1", b"HVDCKPT2"
"""Last bytes of a checkpoint: PLAIN after a checksum, SEALED after a MAC."""


class UntrustedCheckpointError(ValueError):
    """Raised if another user might have written the checkpoint."""


class Sum(Protocol):
    """Running checksum or MAC over a checkpoint's bytes."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True)
class Trust:
    """Trust rules for reading checkpoints, and the checksum or MAC to write.

    Args:
        any_owner: True to read checkpoints of other users too.
        key_file: Path of the file with the MAC's key, or "" for no MAC. Checkpoints without this MAC are rejected.
    """

    any_owner: bool = False
    key_file: str = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> Trust:
        """Create the rules from the settings. Raises ValueError if the key file cannot be used.

        A missing key file is an error only when a checkpoint is read or written.
        """
        made = cls(settings.text(_OWNERS) == "any", settings.text(_KEY_FILE))
        if made.key_file and os.path.exists(made.key_file):
            _ = made.key
        return made

    @functools.cached_property
    def key(self) -> bytes | None:
        """Key of the MAC, or None without a key file. Raises ValueError if the key file cannot be used."""
        return bytes(read_key_file(self.key_file, _KEY_FILE)) if self.key_file else None

    @property
    def magic(self) -> bytes:
        """Magic bytes at the end of each written checkpoint, which identify its format."""
        return PLAIN if self.key is None else SEALED

    def sum(self, step: int) -> Sum:
        """Return a new checksum or MAC for the checkpoint of a step.

        A MAC covers the step too, so that a renamed checkpoint of another step is rejected.
        """
        if self.key is None:
            return hashlib.sha256()
        return hmac.new(self.key, b"horovod checkpoint of step %d\0" % step, "sha256")

    def check_end(self, magic: bytes, name: str) -> None:
        """Raise UntrustedCheckpointError if a key is configured but the MAC is missing, or vice versa."""
        if magic == SEALED and self.key is None:
            raise UntrustedCheckpointError(f"{name} is sealed with a key; {_KEY_FILE} has to name the file with it")
        if magic == PLAIN and self.key is not None:
            raise UntrustedCheckpointError(
                f"{name} is not sealed with the key in {_KEY_FILE}, so anyone may have written it; unset the variable "
                "to read it all the same"
            )

    def needs_copy(self, fd: int) -> bool:
        """Return True if other users could change a file after its MAC has been verified."""
        found = os.fstat(fd)
        by_others = found.st_uid not in (os.geteuid(), 0) or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        return self.key is not None and by_others

    def check_owner(self, fd: int, name: str, probe: Callable[[], os.stat_result]) -> None:
        """Check that this user owns the file and that not every user can write to it.

        Args:
            fd: Descriptor of the file.
            name: Name of the file in the error message.
            probe: Function that creates a file with mode 0600 in the same directory, removes it and returns its
                status, for comparison. Can raise OSError.

        Raises:
            UntrustedCheckpointError: If another user owns the file or every user can write to it.
        """
        if self.any_owner or self.key is not None:
            return
        found = os.fstat(fd)
        foreign = found.st_uid not in (os.geteuid(), 0)
        if not foreign and not found.st_mode & stat.S_IWOTH:
            return
        try:
            own = probe()
        except OSError:
            own = None
        if own is not None and own.st_uid == found.st_uid and (own.st_mode & stat.S_IWOTH or foreign):
            return
        who = f"belongs to user {found.st_uid}, not to {os.geteuid()}" if foreign else "can be written by every user"
        raise UntrustedCheckpointError(
            f"{name} {who}, and a checkpoint can run anything as it is read. If its writer is trusted, set "
            f"{_OWNERS}=any, or make the file this user's (chown, chmod o-w)"
        )


OWN = Trust()
_LENGTH = struct.Struct(">Q")
_END = _LENGTH.size + hashlib.sha256().digest_size + len(PLAIN)
_PIECE = 1 << 20
_NAME = re.compile(r"step-(\d{12,})\.ckpt", re.ASCII)
_UNFINISHED = re.compile(r"\.(?:step-\d{12,}|job)\.\d+(?:\.[0-9a-f]+)?\.tmp")
# Age in seconds after which an unfinished file counts as abandoned. Used on file systems without locks.
ABANDONED = 3600.0


class TornCheckpointError(ValueError):
    """Raised if a checkpoint file is damaged or incomplete."""


def name_of(step: int) -> str:
    """Return the file name for a step. Names sort in step order, for steps of up to 12 digits."""
    return f"step-{step:012d}.ckpt"


def steps_of(names: Iterable[str]) -> list[int]:
    """Return the steps of the checkpoint files among ``names``, latest first."""
    return sorted((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), reverse=True)


def steps_in(directory: Path) -> list[int]:
    """Return the steps of a directory's checkpoint files, newest first, or no steps if the directory does not exist."""
    try:
        return steps_of(os.listdir(directory))
    except FileNotFoundError:
        return []


def begin(directory: Path, stem: str) -> tuple[Path, io.FileIO]:
    """Create a temporary file and lock it, so that other ranks do not remove it as stale.

    Raises:
        OSError: If the file cannot be created.
    """
    while True:
        path = directory / f".{stem}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        # Set the mode explicitly, because readers reject a file that a permissive umask makes writable for others.
        file = io.FileIO(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o644))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = path.exists()
        except BlockingIOError:  # another process has seen the file unlocked, and will remove it as abandoned
            there = False
        except OSError:  # some file systems do not support locks
            there = True
        if there:
            return path, file
        file.close()


def is_unfinished(name: str) -> bool:
    """Return True if this is the name of an unfinished temporary file."""
    return _UNFINISHED.fullmatch(name) is not None


def remove_unfinished(directory: Path) -> None:
    """Remove temporary files left by killed writers, but not those still being written."""
    for name in os.listdir(directory):
        if is_unfinished(name):
            with contextlib.suppress(OSError):
                _remove_abandoned(directory / name)


def open_plain(path: Path) -> io.FileIO:
    """Open a regular file for reading, and reject pipes and devices.

    Raises:
        TornCheckpointError: If the path is a pipe or device.
        OSError: If the file cannot be opened.
    """
    # O_NONBLOCK prevents this call from blocking if the path is a pipe.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise TornCheckpointError(f"{path} is no plain file")
    return io.FileIO(fd)


def probe_owner(directory: Path) -> os.stat_result:
    """Create and remove a temporary file with mode 0600 in the directory, and return the file's status.

    The status shows which owner and mode the file system gives to this user's files.

    Raises:
        OSError: If the file cannot be created.
    """
    path, file = begin(directory, "job")
    with file:
        try:
            with contextlib.suppress(OSError):  # ignore file systems that do not support file modes
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
    """Move the files of the given steps to a new subdirectory, such as ``earlier-1``, and return its path."""
    number = 1
    while (folder := directory / f"earlier-{number}").exists():
        number += 1
    folder.mkdir()
    for step in steps:
        with contextlib.suppress(FileNotFoundError):
            os.rename(directory / name_of(step), folder / name_of(step))
    return folder


def write(directory: Path, step: int, dump: Callable[[IO[bytes]], None], trust: Trust = OWN) -> Path:
    """Write a checkpoint file atomically.

    If writing fails, an existing file of this step is kept, and no incomplete file is left.

    Args:
        directory: Directory of the file.
        step: Step of the checkpoint.
        dump: Function that writes the payload into the given file.
        trust: Rules that determine whether the file ends with a checksum or a MAC.

    Raises:
        OSError: If the file cannot be written. ``dump`` can raise other errors.
    """
    target = directory / name_of(step)
    unfinished, file = begin(directory, target.stem)
    try:
        with file:
            write_into(file, step, dump, trust)
            os.fsync(file.fileno())
            # Rename while the file is still locked, so that no other rank removes it as abandoned.
            os.rename(unfinished, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
    _sync_directory(directory)
    return target


def write_into(file: io.FileIO, step: int, dump: Callable[[IO[bytes]], None], trust: Trust = OWN) -> None:
    """Write payload, length and checksum at the file's current position.

    Can raise OSError and any error that ``dump`` raises.
    """
    whole = _Summed(file, trust.sum(step))
    buffered = io.BufferedWriter(whole, _PIECE)
    dump(buffered)
    buffered.flush()
    buffered.detach()
    _all(file, whole.end() + trust.magic)


def read(directory: Path, step: int, load: Callable[[IO[bytes]], Any], trust: Trust = OWN) -> Any:
    """Verify the checksum of a checkpoint, and return what ``load`` returns for its payload.

    Raises:
        TornCheckpointError: If the file is damaged. The message describes the damage.
        UntrustedCheckpointError: If another user might have written the file.
        OSError: If the file cannot be read.
    """
    path = directory / name_of(step)
    with open_plain(path) as file:
        trust.check_owner(file.fileno(), str(path), lambda: probe_owner(directory))
        if not trust.needs_copy(file.fileno()):
            return read_from(file, str(path), step, load, trust)
        with tempfile.TemporaryFile(prefix="horovod-checkpoint-", buffering=0) as copy:
            while piece := file.read(_PIECE):
                _all(copy, piece)
            return read_from(copy, str(path), step, load, trust)


def read_from(file: io.FileIO, name: str, step: int, load: Callable[[IO[bytes]], Any], trust: Trust = OWN) -> Any:
    """Read a checkpoint as ``read`` does, but from an open file. Error messages refer to the file as ``name``."""
    with open(file.fileno(), "rb", closefd=False) as buffered:
        buffered.seek(0)
        length = _checked(buffered, name, step, trust)
    return load(io.BufferedReader(_Payload(file, length), _PIECE))


def _checked(file: io.BufferedReader, name: str, step: int, trust: Trust) -> int:
    """Verify the file's checksum and length, and return the length of its payload."""
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
    """File-like writer that forwards bytes to ``file`` and keeps track of their count and checksum."""

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
    """File-like reader that ends after the first ``length`` bytes of a file."""

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
