"""Key exchange between the ranks of one host over an abstract Unix socket.

Each side verifies that the other is a process of the same user (``Peer``). With a user-supplied key, each side instead
verifies that the other has this key. The socket's name is random, so no process can bind the name in advance. The other
ranks, called followers, find the name in the kernel's list of sockets. Other processes can create sockets with the same
prefix, so a follower checks each socket's owner.

    follower -> rank 0   nonce F
    rank 0 -> follower   nonce Z, F
    follower -> rank 0   Z
    rank 0 -> follower   the payload

Each side trusts an answer because the kernel reports its sender. With a key, the handshake of ``auth`` replaces these
messages.

The kernel reports the peer's user id, but equal ids are not sufficient. Containers can share the network namespace of
an abstract socket, so the peer can be the root user of another container. In a user namespace, all unmapped users have
the same id, the overflow uid. So this module uses the kernel's own criterion for reading another process's memory
(ptrace(2), "Ptrace access mode checking"). The peer must have the same user in the same user namespace, and must be in
the same pid namespace. A process that meets these conditions could also read the key from this process's memory.

A process id can be reused before it is looked up. So each side opens the peer's directory in /proc and sends a nonce.
The directory refers to the same process even if its id is reused. A side trusts an answer only under two conditions:
the kernel reports that the process with this id has sent the answer, and the directory shows that the process is still
alive.
"""

import contextlib
import hashlib
import hmac
import os
import random
import re
import secrets
import socket
import time
from dataclasses import dataclass

from horovod.common.contract import kernel
from horovod.common.contract.private_files import Secret
from horovod.common.key_exchange.key_server import KeyServer, read_all
from horovod.common.security import auth
from horovod.common.security.auth import AuthError, derive_key

NONCE = 32

# The inode of the initial user namespace is the same on every machine (PROC_USER_INIT_INO).
_INITIAL_USERS = "user:[4026531837]"


@dataclass(frozen=True)
class Sender:
    """Sender of a message or creator of a socket, as reported by the kernel.

    Ids are relative to this process's namespaces. ``pid`` is 0 if the process is not visible there.
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
        """Read the namespaces of a process from its directory in /proc.

        Args:
            folder: Descriptor of the process's directory in /proc. None means this process.

        Raises:
            OSError: If the process has exited or this process cannot inspect it.
        """
        start = "/proc/self/ns" if folder is None else "ns"
        return cls(os.readlink(f"{start}/user", dir_fd=folder), os.readlink(f"{start}/pid", dir_fd=folder))


def ambiguous(uid: int, overflow: int, users: str) -> bool:
    """Return True if ``uid`` is the overflow id, which stands for all unmapped users of the namespace ``users``."""
    return uid == overflow and users != _INITIAL_USERS


def differs(sender: Sender, peer: Namespaces | None, uid: int, own: Namespaces) -> str:
    """Return why ``sender`` is not a process of user ``uid`` on this system, or "" if it is.

    Args:
        sender: Sender as reported by the kernel.
        peer: Namespaces of the sender, or None if the process is not visible.
        uid: Expected user.
        own: Namespaces of this process.
    """
    if sender.uid != uid:
        return f"a process of user {sender.uid}, not {uid}"
    if sender.pid == 0 or peer is None or peer.pids != own.pids:
        return "a process in another pid namespace, perhaps of another container"
    if peer.users != own.users:
        return "a process in another user namespace, perhaps of another container"
    return ""


def check_self() -> None:
    """Raise AuthError if this namespace cannot distinguish this user from other users."""
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
    """Handle to the process at the other end of a Unix socket. Close the handle after use."""

    def __init__(self, sock: socket.socket) -> None:
        """Identify the peer. Raises AuthError if the peer is not this user's process on this system."""
        pid, uid, _ = kernel.peer_credentials(sock)
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
        """Check that the answer was sent by the identified peer itself. Raises AuthError if another process sent it."""
        if sender != self._sender:
            raise AuthError("a process that speaks for another one")
        try:
            self._check()
        except OSError:
            raise AuthError("a process that has ended") from None

    def close(self) -> None:
        """Close the peer's directory in /proc. Can be called repeatedly."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def enable_credentials(sock: socket.socket) -> None:
    """Ask the kernel to attach the sender's credentials to messages. Call before the socket connects or listens."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(sock: socket.socket, count: int) -> tuple[bytes, Sender | None]:
    """Receive up to ``count`` bytes, and return them with their sender."""
    data, extra, _, _ = sock.recvmsg(count, socket.CMSG_SPACE(kernel.CREDENTIALS.size))
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) >= kernel.CREDENTIALS.size:
            pid, uid, _ = kernel.CREDENTIALS.unpack_from(content)
            return data, Sender(pid, uid)
    return data, None


def nonce() -> bytes:
    """Return a random nonce that the peer must send back."""
    return secrets.token_bytes(NONCE)


# The handshake requires a purpose and ranks. They are fixed here, because any process with the key is accepted.
_PLACE = auth.Place(purpose=0, epoch=0, source=1, target=0)
# Initial and maximum timeout in seconds for a peer that does not answer.
_PATIENCE, _MAX_PATIENCE = 0.5, 5.0
_LEAST = 0.05
_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
# Flag of listening sockets in /proc/net/unix.
_LISTENS = 0x10000
# Format of a line in /proc/net/unix. The fourth field contains a socket's flags, and the last one its name. Abstract
# names begin with "@" and can contain any character, even line ends.
_LINE = re.compile(r"(?:\S+ ){3}([0-9A-F]{8}) [0-9A-F]+ [0-9A-F]+ +[0-9]+ @(.*)")
_GIVE = (
    "where the kernel cannot vouch for the ranks, as in different containers, give all of them one key: "
    "HOROVOD_KEY_FILE=FILE with a file of mode 0600"
)


def serve_local(job: str, payload: bytes, key: bytes | None = None) -> KeyServer:
    """Serve ``payload`` to the other ranks of ``job`` on this host.

    Ranks get the payload if they belong to this user or, if ``key`` is not None, if they have the key.

    Raises:
        OSError: If the socket cannot be opened.
        AuthError: If other users' processes cannot be distinguished from this process.
    """
    if key is None:
        _check_self()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        enable_credentials(sock)
        sock.bind(f"\0{_start_of_name(job, key)}{secrets.token_hex(16)}")
        sock.listen(128)
    except OSError:
        sock.close()
        raise

    def begin(peer: socket.socket) -> "_Follower | _FollowerWithKey | None":
        with contextlib.suppress(AuthError, OSError):
            return _FollowerWithKey(key, payload) if key is not None else _Follower(Peer(peer), payload)
        return None

    return KeyServer([sock], begin)


class _Follower:
    """Rank 0's side of the exchange with another rank, which is authenticated by its user id."""

    def __init__(self, peer: Peer, payload: bytes) -> None:
        self.outgoing = b""
        self._peer = peer
        self._payload = payload
        self._nonce = nonce()
        self._requested = False
        self._incoming = b""

    @property
    def bytes_wanted(self) -> int:
        return NONCE - len(self._incoming) if self._payload else 0

    def receive(self, sock: socket.socket) -> None:
        self._incoming += _receive_from(sock, self.bytes_wanted, self._peer)
        if self.bytes_wanted:
            return
        message, self._incoming = self._incoming, b""
        if not self._requested:
            self._requested = True
            self.outgoing = self._nonce + message
        elif hmac.compare_digest(message, self._nonce):
            self.outgoing, self._payload = self._payload, b""
        else:
            raise AuthError("a wrong answer")

    def close(self) -> None:
        self._peer.close()


class _FollowerWithKey:
    """Rank 0's side of the exchange with another rank, which is authenticated by the user-supplied key."""

    def __init__(self, key: bytes, payload: bytes) -> None:
        self.outgoing = b""
        self._payload = payload
        self._side = auth.Acceptor(key, _PLACE.epoch, _PLACE.target)

    @property
    def bytes_wanted(self) -> int:
        return self._side.bytes_wanted

    def receive(self, sock: socket.socket) -> None:
        data = sock.recv(self.bytes_wanted)
        if not data:
            raise AuthError("it has hung up")
        self._side.feed(data)
        self.outgoing, self._side.outgoing = self._side.outgoing, b""
        if self._side.complete:
            self.outgoing += self._payload

    def close(self) -> None:
        pass


def receive_local(job: str, seconds: float, key: bytes | None = None) -> bytes:
    """Wait until rank 0 calls ``serve_local``, and return its payload.

    Raises:
        AuthError: If no answer arrives within ``seconds``. The message says if unrelated processes listen on similarly
            named sockets.
    """
    if key is None:
        _check_self()
    deadline = time.monotonic() + seconds
    pause, patience, trouble = _PAUSE, _PATIENCE, ""
    while True:
        for name in _open_names(_start_of_name(job, key)):
            try:
                data = _visit(name, max(_LEAST, min(patience, deadline - time.monotonic())), key)
                if data:
                    return data
            except AuthError as error:
                trouble = f": {error} listens in its place; {_GIVE}"
            except OSError:  # try the next socket if this one was closed or its process does not answer
                pass
            # Sockets of other processes might not answer, so check the time after each one.
            if time.monotonic() >= deadline:
                break
        if time.monotonic() >= deadline:
            raise AuthError(f"its socket on this host did not appear{trouble}")
        time.sleep(pause)
        pause, patience = min(2 * pause, _LONGEST_PAUSE), min(2 * patience, _MAX_PATIENCE)


def _check_self() -> None:
    try:
        check_self()
    except AuthError as error:
        raise AuthError(f"{error}; {_GIVE}") from None


def _visit(name: str, seconds: float, key: bytes | None) -> bytes:
    """Get the payload from one socket. Raises AuthError if the socket belongs to another user's process."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as at_end:
        sock = at_end.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        enable_credentials(sock)
        sock.settimeout(seconds)
        sock.connect("\0" + name)
        if key is not None:
            auth.connect(sock, key, _PLACE, seconds)
        else:
            peer = at_end.enter_context(contextlib.closing(Peer(sock)))
            _ask(sock, peer, deadline)
        return Secret(read_all(sock, max(_LEAST, deadline - time.monotonic())))


def _ask(sock: socket.socket, peer: Peer, deadline: float) -> None:
    mine = nonce()
    sock.sendall(mine)
    answer = b""
    while len(answer) < 2 * NONCE:
        sock.settimeout(max(_LEAST, deadline - time.monotonic()))
        answer += _receive_from(sock, 2 * NONCE - len(answer), peer)
    if not hmac.compare_digest(answer[NONCE:], mine):
        raise AuthError("a process that answers wrongly")
    sock.sendall(answer[:NONCE])


def _receive_from(sock: socket.socket, count: int, peer: Peer) -> bytes:
    """Receive bytes that the peer has sent. Raises AuthError if another process has sent them."""
    data, sender = receive(sock, count)
    if not data or sender is None:
        raise AuthError("a process that hangs up")
    peer.confirm(sender)
    return data


def _start_of_name(job: str, key: bytes | None) -> str:
    """Return the prefix of the socket's name, which every rank can compute. It is unique to the job, but not secret."""
    digest = (
        hashlib.sha256(f"{os.geteuid()}/{job}".encode()).digest() if key is None else derive_key(key, f"door {job}")
    )
    return f"horovod-meet-{digest[:16].hex()}-"


def _open_names(start: str) -> list[str]:
    """List listening sockets with this prefix. The order is random, so that no other job's socket is always first."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        found = [_LINE.fullmatch(line.rstrip("\n")) for line in file if f"@{start}" in line]
    names = [line[2] for line in found if line and line[2].startswith(start) and int(line[1], 16) & _LISTENS]
    random.shuffle(names)
    return names
