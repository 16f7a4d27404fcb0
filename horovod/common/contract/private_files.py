"""Folders and files in places where other users may have put something first.

Every name there can be a symbolic link, a pipe, or a second name of another file, and can change between two looks. So
each name is opened once, without following a link, and owner, kind and mode are asked of the descriptor. What lies in a
folder is reached by that folder's descriptor (`dir_fd`), never by its path again.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a reader would block
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(OSError):
    """A folder or file belongs to another user, or others can write to it."""


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of a with statement."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_folder(name: str, dir_fd: int | None = None, *, make: bool = False, listed: bool = False) -> int:
    """Open a folder that is no symbolic link and return its descriptor.

    Args:
        name: The folder, in the folder `dir_fd` if that is given.
        make: Make it if it is missing.
        listed: Its names will be listed; otherwise it need not be readable.

    Raises:
        OSError: It cannot be opened or made, or is something else.
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
    """Open a folder that only this user can write to, made with mode 0700 if it is missing.

    Raises:
        NotPrivateError: It belongs to another user, or others can write to it.
        OSError: It cannot be opened or made, or is something else.
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
    """Return the status of what is open, which only this user can write to.

    Raises:
        NotPrivateError: It belongs to another user, or others can write to it.
    """
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise NotPrivateError(errno.EPERM, f"it belongs to user {status.st_uid}, not to {os.geteuid()}", path)
    if status.st_mode & _BY_OTHERS:
        raise NotPrivateError(errno.EPERM, f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o})", path)
    return status


def open_file(name: str, flags: int, dir_fd: int | None = None, mode: int = 0o666) -> int:
    """Open a plain file that has no other name, made if it is missing, and return its descriptor.

    Args:
        name: The file, in the folder `dir_fd` if that is given; links in the path before its last part are followed.
        flags: How it is opened, such as `os.O_WRONLY | os.O_APPEND`. Never `os.O_TRUNC`, since what is there is only
            then known to be a plain file; call `os.ftruncate`.

    Raises:
        OSError: It cannot be opened or made, or is something else.
    """
    try:
        fd = os.open(name, _FILE | flags, mode, dir_fd=dir_fd)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            _refuse_link(name, dir_fd)
        raise
    try:
        # Looked at by its name: a second name of another file, taken away since it was opened, is not there any more.
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        mine = os.path.samestat(found, os.fstat(fd)) and stat.S_ISREG(found.st_mode) and found.st_nlink < 2
        if not mine:
            raise OSError(errno.EEXIST, "something else is there; accepted is a plain file that has no other name")
    except OSError:
        os.close(fd)
        raise
    return fd


def _refuse_link(name: str, dir_fd: int | None) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed here")
