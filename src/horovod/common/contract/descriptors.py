"""Helpers for file descriptors: limit on open files, in-memory files (memfd), and checks of Unix sockets' peers.

In-memory files have no names. They are used to pass the job's key to workers, and as shared memory of a host's ranks.
"""

import errno
import os
import resource
import socket
import struct


def make_room(count: int, at_least: int | None = None) -> None:
    """Raise this process's soft limit on open files if ``count`` more descriptors would exceed it.

    The limit is raised only as far as needed, because ``select`` cannot handle descriptors of 1024 and above.

    Args:
        count: Number of descriptors to make room for.
        at_least: Number that is sufficient if the hard limit is too low for ``count``. Default: ``count``.

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
    """Raised if the system does not allow an in-memory file. The message says which system setting to change."""

    def __str__(self) -> str:  # override this, because an OSError's text includes the error number
        return str(self.strerror)


def create_memory_file(name: str) -> int:
    """Create an empty, sealable in-memory file and return its close-on-exec descriptor. /proc shows its ``name``.

    Raises:
        MemoryFileError: If the file cannot be created.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        text = MEMFD_REFUSED if error.errno in _FORBIDDEN else _NO_ROOM
        raise MemoryFileError(error.errno, text.format(error.strerror)) from None


# Kinds of namespaces. User and process ids are comparable only between processes in the same namespaces.
_KINDS = ("user", "pid")
# Format of struct ucred: process id, user id and group id.
CREDENTIALS = struct.Struct("3i")


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return the peer's (process id, user id, group id), as of the time when it connected or began to listen.

    The ids are relative to this process's namespaces.
    """
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid, gid


def peer_user(sock: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket."""
    return peer_credentials(sock)[1]


def is_this_user_or_root(sock: socket.socket) -> bool:
    """Return True if the peer is a process in this container and belongs to this user or root.

    Abstract sockets belong to a network namespace, which containers can share. Processes of other containers are not
    trusted, even if they have the same user id.
    """
    pid, uid, _ = peer_credentials(sock)
    if pid <= 0:  # the kernel reports no process id for a peer in another pid namespace
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
