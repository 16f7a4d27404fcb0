"""Whose process is at the other end of a Unix socket, as the kernel says."""

import os
import socket
import struct

_KINDS = ("user", "pid")  # of namespaces
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group that connected, or that listen; when they did so. In numbers of our namespaces."""
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid, gid


def user(sock: socket.socket) -> int:
    return credentials(sock)[1]


def is_this_user_or_root(sock: socket.socket) -> bool:
    """Return True if a process of this user or root is at the other end, and of this container.

    Containers may share a network namespace, to which abstract sockets belong. Their processes are strangers, even
    where their users have the same numbers.
    """
    pid, uid, _ = credentials(sock)
    if pid <= 0:  # a process that cannot be seen from here
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
