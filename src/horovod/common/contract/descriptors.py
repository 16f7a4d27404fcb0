"""File descriptors: the limit of open files, files in memory (memfd), and the peers of Unix sockets.

Files in memory have no names. They are used to pass the job's key to workers, and as shared memory of the ranks on a
host.
"""

import errno
import os
import resource
import socket
import struct


def make_room(count: int, at_least: int | None = None) -> None:
    """Raise this process's soft limit of open files if ``count`` more would not fit.

    It is raised only as far as needed, because ``select`` cannot handle descriptors of 1024 and above.

    Args:
        count: Number of descriptors to make room for.
        at_least: Smallest number that is enough if the hard limit is too low for ``count``; None: ``count``.

    Raises:
        ValueError: If the hard limit is too low. The message names the limit and the number needed.
    """
    used = len(os.listdir("/proc/self/fd"))
    needed = used + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if at_least is not None and hard != resource.RLIM_INFINITY:
        needed = max(soft, min(needed, hard), used + at_least)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ValueError(
            f"this process may have {hard} files open, but in this job it needs {needed}; raise the limit on this host "
            "(ulimit -Hn, or LimitNOFILE of the service that starts it)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


MEMFD_REFUSED = (
    "memfd_create is refused ({}), without which no job can start: it hands the job's key to workers, and ranks share "
    "memory by it. A container's seccomp profile has to allow it, as those of Docker and Podman do"
)

_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_NO_ROOM = "no file can be made in memory: {} (of this process: ulimit -n; of the machine: fs.file-max, memory)"


class MemoryFileError(OSError):
    """The system does not allow the file to be created; the message says what to change."""

    def __str__(self) -> str:  # show the message without the error number
        return str(self.strerror)


def create_memory_file(name: str) -> int:
    """Create an empty, sealable file in memory and return its close-on-exec descriptor. ``name`` only shows in /proc.

    Raises:
        MemoryFileError: If the file cannot be created.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        text = MEMFD_REFUSED if error.errno in _FORBIDDEN else _NO_ROOM
        raise MemoryFileError(error.errno, text.format(error.strerror)) from None


_KINDS = ("user", "pid")  # Namespaces that both processes must share.
CREDENTIALS = struct.Struct("3i")  # Process id, user id, group id.


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return (process id, user id, group id) of the peer, from when it connected or began to listen.

    The ids are those of this process's namespaces.
    """
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid, gid


def peer_user(sock: socket.socket) -> int:
    """Return the user id of the Unix socket's peer."""
    return peer_credentials(sock)[1]


def is_this_user_or_root(sock: socket.socket) -> bool:
    """Return True if the peer is a process in this container, of this user or of root.

    Containers may share a network namespace, to which abstract sockets belong. Processes of other containers are not
    trusted, even if their users have the same numbers.
    """
    pid, uid, _ = peer_credentials(sock)
    if pid <= 0:  # the peer's process is not visible in this namespace
        return False
    if uid == 0:
        return True
    return uid == os.geteuid() and all(
        _namespace(f"/proc/{pid}", kind) == _namespace("/proc/self", kind) for kind in _KINDS
    )


def _namespace(process: str, kind: str) -> str | None:
    try:
        return os.readlink(f"{process}/ns/{kind}")
    except OSError:
        return None
