"""Safe access to files in directories that other users can write to, and a type for secret bytes.

In such a directory, any name can be a symbolic link, a pipe, or a hard link to another file, and can change between
two checks. So this module opens each name once, without following links, and reads owner, type and mode from the
descriptor. It accesses files in a directory through the directory's descriptor (`dir_fd`) and does not use the path a
second time.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that has no reader would block.
_FILE = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(OSError):
    """Raised if another user owns, or can write to, a directory or file."""


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Return a context manager that closes the descriptor on exit."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_folder(name: str, dir_fd: int | None = None, *, make: bool = False, listed: bool = False) -> int:
    """Open a directory that is not a symbolic link, and return its descriptor.

    Args:
        name: Path of the directory, relative to `dir_fd` if that is not None.
        dir_fd: Descriptor of the parent directory.
        make: True to create the directory if it is missing.
        listed: True to list the directory later, which requires read permission.

    Raises:
        OSError: If the path cannot be opened or created, or is not a directory.
    """
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=dir_fd)
    try:
        return os.open(name, _FOLDER | (os.O_RDONLY if listed else os.O_PATH), dir_fd=dir_fd)
    except OSError:
        _refuse_link(name, dir_fd)
        raise


def open_private_folder(path: str) -> int:
    """Open a directory that only this user can write to, or create it with mode 0700 if it is missing.

    Returns:
        Descriptor of the directory.

    Raises:
        NotPrivateError: If the directory belongs to another user, or others can write to it.
        OSError: If the path cannot be opened or created, or is not a directory.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    fd = open_folder(path, listed=True)
    try:
        check_private(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_private(fd: int, path: str) -> os.stat_result:
    """Check that only this user can write to an open file or directory, and return its status.

    Raises:
        NotPrivateError: If the file belongs to another user, or others can write to it.
    """
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise NotPrivateError(errno.EPERM, f"it belongs to user {status.st_uid}, not to {os.geteuid()}", path)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise NotPrivateError(errno.EPERM, f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o})", path)
    return status


def open_file(name: str, flags: int, dir_fd: int | None = None, mode: int = 0o666) -> int:
    """Open a regular file that has no other hard links, or create it if it is missing, and return its descriptor.

    Args:
        name: Path of the file, relative to `dir_fd` if that is not None. Links in its directory part are followed.
        flags: Flags for opening, such as `os.O_WRONLY | os.O_APPEND`. Never use `os.O_TRUNC`, because the file is
            checked only after it was opened. Call `os.ftruncate` instead.
        dir_fd: Descriptor of the directory.
        mode: Mode of a new file.

    Raises:
        OSError: If the file cannot be opened or created, is not a regular file, or has other hard links.
    """
    try:
        fd = os.open(name, _FILE | flags, mode, dir_fd=dir_fd)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            _refuse_link(name, dir_fd)
        raise
    try:
        # Check that the name still refers to the open file. The link count is not enough, because an attacker could
        # remove a hard link after the file was opened.
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        mine = os.path.samestat(found, os.fstat(fd)) and stat.S_ISREG(found.st_mode) and found.st_nlink < 2
        if not mine:
            raise OSError(errno.EEXIST, "it must be a plain file without hard links, or not exist")
    except OSError:
        os.close(fd)
        raise
    return fd


def cache_directory() -> Path:
    """Return Horovod's cache directory of this user: $XDG_CACHE_HOME/horovod, or ~/.cache/horovod by default."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # ignore a relative path, as the XDG specification requires
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "horovod")


def read_private(path: Path, limit: int) -> bytes:
    """Return the contents of a file of at most ``limit`` bytes.

    Raises:
        ValueError: If the file is larger, or another user could have written it.
        OSError: If the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError("it is not a file that only this user can read and write")
        if status.st_size > limit:
            raise ValueError(f"it has {status.st_size} bytes")
        return file.read(limit)


def write_private(path: Path, data: bytes) -> None:
    """Atomically replace a file with one that only this user can access. Create its directory if it is missing.

    Raises:
        OSError: If the file cannot be written.
    """
    import tempfile  # imported here because the import is slow and workers do not need it to start

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _refuse_link(name: str, dir_fd: int | None) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed here")


class Secret(bytes):
    """Bytes whose repr shows only their length, as in ``<secret of 32 bytes>``.

    This keeps keys out of logs, and out of tracebacks in which debuggers, notebooks and test runners show variables. A
    Secret otherwise behaves like ``bytes``. ``bytes(secret)`` returns the bytes without this protection.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<secret of {len(self)} bytes>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)
