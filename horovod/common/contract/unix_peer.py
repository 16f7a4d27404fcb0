"""Whose process is at the other end of a Unix socket, as the kernel says."""

import socket
import struct

CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group that connected, or that listen; when they did so. In numbers of our namespaces."""
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid, gid


def user(sock: socket.socket) -> int:
    return credentials(sock)[1]
