"""Is the process at the other end of a Unix socket one of this user's, with as much right to the job's key as this?

The kernel tells a peer's user id, but equal numbers are not enough: abstract sockets belong to a network namespace,
which containers may share. There may be another container's root; and in a user namespace that does not know all users,
those that it does not know all have one number, the overflow uid. So the question is the one that the kernel itself
asks before one process may read another's memory (ptrace(2), "Ptrace access mode checking"): the same user, in the same
user namespace, and visible, that is, in the same pid namespace. Who passes could take the key from our memory as well.

A process's number may be another's by the time it is looked up. So each side holds the peer's folder in /proc, which
means that process and never a later one of its number, asks for a number used once, and believes an answer only when
the kernel says that the process of this number has sent it and the folder says that it has lived all the while.
"""

import os
import secrets
import socket
from dataclasses import dataclass

from horovod.common.contract import unix_peer
from horovod.common.security.auth import AuthError

NONCE = 32

_INITIAL_USERS = "user:[4026531837]"  # its number is the same on every machine: PROC_USER_INIT_INO


@dataclass(frozen=True)
class Sender:
    """Who has sent something, or made a socket, as the kernel says. Numbers mean what they mean in our namespaces; a
    ``pid`` of 0 is a process that cannot be seen from here."""

    pid: int
    uid: int


@dataclass(frozen=True)
class Namespaces:
    """Those of one process."""

    users: str
    pids: str

    @classmethod
    def of(cls, folder: int | None = None) -> "Namespaces":
        """Of the process whose folder in /proc this is, default: our own. Raises OSError when it has ended, or may not
        be looked at."""
        start = "/proc/self/ns" if folder is None else "ns"
        return cls(os.readlink(f"{start}/user", dir_fd=folder), os.readlink(f"{start}/pid", dir_fd=folder))


def ambiguous(uid: int, overflow: int, users: str) -> bool:
    """Can ``uid`` in the user namespace ``users`` stand for several users? Pure."""
    return uid == overflow and users != _INITIAL_USERS


def differs(sender: Sender, theirs: Namespaces | None, uid: int, ours: Namespaces) -> str:
    """Why ``sender`` is not one of the processes of user ``uid`` here; empty: it is one. Pure.

    ``theirs``: None where its process cannot be seen.
    """
    if sender.uid != uid:
        return f"a process of user {sender.uid}, not {uid}"
    if sender.pid == 0 or theirs is None or theirs.pids != ours.pids:
        return "a process in another pid namespace, perhaps of another container"
    if theirs.users != ours.users:
        return "a process in another user namespace, perhaps of another container"
    return ""


def check_self() -> None:
    """Raises AuthError when this process cannot be told from those of other users."""
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
        overflow = int(file.read())
    if ambiguous(os.geteuid(), overflow, os.readlink("/proc/self/ns/user")):
        raise AuthError(
            f"this process runs as user {overflow} in a user namespace, where that number stands for every user who is "
            "not known there"
        )
    if os.readlink("/proc/self") != str(os.getpid()):
        raise AuthError("/proc is that of another pid namespace, so no process can be told from another by it")


class Peer:
    """The process at the other end of a connected Unix socket: who connected, or who listens. Close it."""

    def __init__(self, sock: socket.socket) -> None:
        """Raises AuthError saying why it is none of this user's here."""
        pid, uid, _ = unix_peer.credentials(sock)
        self._sender = Sender(pid, uid)
        self._folder = -1
        try:
            if pid > 0 and uid == os.geteuid():
                self._folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._check()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise AuthError(f"a process that cannot be looked at: {error.strerror}") from None
            raise

    def _check(self) -> None:
        theirs = Namespaces.of(self._folder) if self._folder >= 0 else None
        reason = differs(self._sender, theirs, os.geteuid(), Namespaces.of())
        if reason:
            raise AuthError(reason)

    def confirm(self, sender: Sender) -> None:
        """It has answered what was asked after it was found: was it itself who did? Raises AuthError."""
        if sender != self._sender:
            raise AuthError("a process that speaks for another one")
        try:
            self._check()
        except OSError:
            raise AuthError("a process that has ended") from None

    def close(self) -> None:
        """May be called again."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def tell_senders(sock: socket.socket) -> None:
    """From now on ``receive`` knows who has sent what comes. Before connecting and listening."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(sock: socket.socket, count: int) -> tuple[bytes, Sender | None]:
    """(up to ``count`` bytes, who has sent them)."""
    data, extra, _, _ = sock.recvmsg(count, socket.CMSG_SPACE(unix_peer.CREDENTIALS.size))
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) >= unix_peer.CREDENTIALS.size:
            pid, uid, _ = unix_peer.CREDENTIALS.unpack_from(content)
            return data, Sender(pid, uid)
    return data, None


def nonce() -> bytes:
    """What the other side has to answer."""
    return secrets.token_bytes(NONCE)
