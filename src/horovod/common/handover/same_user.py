"""Check that the process at the other end of a Unix socket has the same right to the job's key as this one.

The kernel reports the peer's user id, but equal ids are not enough. Abstract sockets belong to a network namespace,
which containers may share, so the peer may be another container's root. In a user namespace, all users that it does not
map have the same id, the overflow uid. So the criterion is the kernel's own for reading another process's memory
(ptrace(2), "Ptrace access mode checking"): the same user in the same user namespace, and visible, that is, in the same
pid namespace. A process that passes could also read the key from our memory.

A process id may be reused before it is looked up. So each side opens the peer's directory in /proc, which refers to
that process even if its id is reused, and sends a nonce. It trusts an answer only if the kernel says that the process
with this id has sent it, and the directory shows that the process has been alive all the time.
"""

import os
import secrets
import socket
from dataclasses import dataclass

from horovod.common.contract import descriptors
from horovod.common.security.auth import AuthError

NONCE = 32

_INITIAL_USERS = "user:[4026531837]"  # the same on every machine: PROC_USER_INIT_INO


@dataclass(frozen=True)
class Sender:
    """Sender of a message or creator of a socket, as reported by the kernel.

    Ids are those of our namespaces. A ``pid`` of 0 is a process that is not visible from here.
    """

    pid: int
    uid: int


@dataclass(frozen=True)
class Namespaces:
    """User and pid namespaces of a process."""

    users: str
    pids: str

    @classmethod
    def of(cls, folder: int | None = None) -> "Namespaces":
        """Return the namespaces of a process.

        Args:
            folder: Descriptor of the process's directory in /proc; None: this process.

        Raises:
            OSError: If the process has ended or must not be inspected.
        """
        start = "/proc/self/ns" if folder is None else "ns"
        return cls(os.readlink(f"{start}/user", dir_fd=folder), os.readlink(f"{start}/pid", dir_fd=folder))


def ambiguous(uid: int, overflow: int, users: str) -> bool:
    """Return True if ``uid`` may stand for several users in the user namespace ``users``. Pure."""
    return uid == overflow and users != _INITIAL_USERS


def differs(sender: Sender, theirs: Namespaces | None, uid: int, ours: Namespaces) -> str:
    """Return why ``sender`` is not a process of user ``uid`` here; empty if it is one. Pure.

    Args:
        sender: Sender as reported by the kernel.
        theirs: Its namespaces; None if the process is not visible.
        uid: Expected user.
        ours: Our namespaces.
    """
    if sender.uid != uid:
        return f"a process of user {sender.uid}, not {uid}"
    if sender.pid == 0 or theirs is None or theirs.pids != ours.pids:
        return "a process in another pid namespace, perhaps of another container"
    if theirs.users != ours.users:
        return "a process in another user namespace, perhaps of another container"
    return ""


def check_self() -> None:
    """Raise AuthError if this process cannot be distinguished from those of other users."""
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
    """Process at the other end of a connected Unix socket: the one that connected or listens. Must be closed."""

    def __init__(self, sock: socket.socket) -> None:
        """Identify the peer. Raises AuthError with the reason if it is not this user's process here."""
        pid, uid, _ = descriptors.peer_credentials(sock)
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
        """Check that the peer itself has sent an answer that was requested after it was identified.

        Raises AuthError.
        """
        if sender != self._sender:
            raise AuthError("a process that speaks for another one")
        try:
            self._check()
        except OSError:
            raise AuthError("a process that has ended") from None

    def close(self) -> None:
        """Close the peer's directory. Idempotent."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def tell_senders(sock: socket.socket) -> None:
    """Make ``receive`` report senders. Call it before connecting or listening."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(sock: socket.socket, count: int) -> tuple[bytes, Sender | None]:
    """Return (up to ``count`` bytes, their sender)."""
    data, extra, _, _ = sock.recvmsg(count, socket.CMSG_SPACE(descriptors.CREDENTIALS.size))
    for level, kind, content in extra:
        if (
            level == socket.SOL_SOCKET
            and kind == socket.SCM_CREDENTIALS
            and len(content) >= descriptors.CREDENTIALS.size
        ):
            pid, uid, _ = descriptors.CREDENTIALS.unpack_from(content)
            return data, Sender(pid, uid)
    return data, None


def nonce() -> bytes:
    """Return a random nonce, which the peer must return."""
    return secrets.token_bytes(NONCE)
