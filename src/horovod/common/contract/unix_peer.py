"""Identity of the process at the other end of a Unix socket, as reported by the kernel."""

import os
import socket
import struct

_KINDS = ("user", "pid")  # kinds of namespaces
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return (process, user, group) of the peer at the time it connected or began to listen.

    The ids are those of this process's namespaces.
    """
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid, gid


def user(sock: socket.socket) -> int:
    """Return the peer's user id."""
    return credentials(sock)[1]


def is_this_user_or_root(sock: socket.socket) -> bool:
    """Return True if the peer is a process of this user or root, in this container.

    Containers may share a network namespace, to which abstract sockets belong. Processes of other containers are not
    trusted, even if their users have the same numbers.
    """
    pid, uid, _ = credentials(sock)
    if pid <= 0:  # a process that is not visible from here
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
