"""Rendezvous methods for ranks started by a launcher other than horovodrun.

- OneHost: an abstract Unix socket between processes of one user, or with a common key (``unix_key_server``). The ranks
  send nothing over a network.
- OnBoard: the launcher's key-value store, called the board, over PMI-1 or PMIx. Rank 0 publishes the address and public
  key of its store, and every other rank a public key. With these, a rank opens an encrypted connection to rank 0 and
  gets the job key. A process that can only read the board cannot get the key. A process that can write to the board
  could control the job anyway.
- AtPort: a key from the user (HOROVOD_KEY_FILE, HOROVOD_JOB_KEY). The store listens on a port derived from the
  launcher's variables. Only a store with this key can answer there.
- ByMunge: for Slurm jobs. Rank 0 serves a credential on a similarly derived port. Only this user's processes can open
  the credential.
"""

import ctypes
import hashlib
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq
import zmq.utils.z85

from horovod.common.contract.private_files import Secret
from horovod.common.key_exchange import curve_exchange, key_server, pmi, search, unix_key_server
from horovod.common.key_exchange.curve_exchange import CurveKeyServer
from horovod.common.key_exchange.key_server import KeyServer
from horovod.common.key_exchange.search import own_addresses, resolve_node
from horovod.common.launchers import Place
from horovod.common.security.auth import AuthError, derive_key
from horovod.common.store.messages import curve_pair
from horovod.common.store.server import StoreServer

# The functions below use MUNGE credentials, which only one user's processes on one cluster can create and open.
#
# Slurm clusters provide MUNGE (auth/munge), so a user can pass the job key to other ranks without any setup. The
# payload is encrypted, and only this user can open it. Each machine can open a credential once.

_TTL_OPTION, _UID_OPTION = 4, 9  # MUNGE_OPT_TTL, MUNGE_OPT_UID_RESTRICTION
_TTL_SECONDS = 300


class MungeError(RuntimeError):
    """Raised if the library or daemon is missing, or if the credential belongs to another user."""


def available() -> bool:
    """Return True if this process can create MUNGE credentials."""
    try:
        return bool(encode(b""))
    except MungeError:
        return False


def encode(payload: bytes) -> bytes:
    """Create a MUNGE credential that only this user's processes can decode. Raises MungeError on failure."""
    library = _load()
    context = library.munge_ctx_create()
    if not context:
        raise MungeError("munge: out of memory")
    text = ctypes.c_char_p()
    try:
        library.munge_ctx_set(ctypes.c_void_p(context), _UID_OPTION, ctypes.c_uint(os.geteuid()))
        library.munge_ctx_set(ctypes.c_void_p(context), _TTL_OPTION, ctypes.c_int(_TTL_SECONDS))
        code = library.munge_encode(ctypes.byref(text), ctypes.c_void_p(context), payload, len(payload))
        _check(library, code)
        return text.value or b""
    finally:
        if text:
            _free(text)
        library.munge_ctx_destroy(ctypes.c_void_p(context))


def decode(credential: bytes) -> Secret:
    """Return a MUNGE credential's payload.

    Raises:
        MungeError: If the credential was already decoded or belongs to another user.
    """
    library = _load()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint(), ctypes.c_uint()
    code = library.munge_decode(
        credential, None, ctypes.byref(payload), ctypes.byref(length), ctypes.byref(uid), ctypes.byref(gid)
    )
    try:
        _check(library, code)
        if uid.value != os.geteuid():
            raise MungeError(f"munge: the credential must be of user {os.geteuid()}, got one of user {uid.value}")
        return Secret(ctypes.string_at(payload, length.value) if payload else b"")
    finally:
        if payload:
            _free(payload)


def _check(library: Any, code: int) -> None:
    if code != 0:
        library.munge_strerror.restype = ctypes.c_char_p
        raise MungeError(f"munge: {library.munge_strerror(code).decode(errors='replace')}")


def _load() -> Any:
    import ctypes.util  # imported here, because the import is slow and rarely needed

    try:
        library = ctypes.CDLL(ctypes.util.find_library("munge") or "libmunge.so.2")
    except OSError as error:
        raise MungeError(f"munge: {error}") from None
    library.munge_ctx_create.restype = ctypes.c_void_p
    return library


def _free(pointer: Any) -> None:
    ctypes.CDLL(None).free(pointer)


class MeetingError(RuntimeError):
    """Raised if this rank cannot find rank 0's store. The message names the places that were searched."""


@dataclass
class Meeting:
    """Address and key of the job's store. On rank 0, also the running server."""

    address: str
    port: int
    key: bytes = field(repr=False)
    server: StoreServer | None = None
    exchange: KeyServer | CurveKeyServer | None = None

    def __post_init__(self) -> None:
        self.key = Secret(self.key)

    def formed(self) -> None:
        """Close the key server, because all ranks have reached the store."""
        if self.exchange is not None:
            self.exchange.close()


@dataclass(frozen=True)
class Group:
    """Group of ranks that form a job, and the user-supplied key, if any."""

    place: Place
    members: tuple[int, ...]
    """World ranks of the group. Empty means all world ranks."""
    user_key: bytes | None = field(repr=False)
    interface: str = ""
    """Value of HOROVOD_GLOO_IFACE."""
    ports: range = range(1)
    """Ports from HOROVOD_PORT_RANGE. ``range(1)`` means any port."""

    @property
    def leader(self) -> int:
        """World rank of the process that runs the store."""
        return self.members[0] if self.members else 0

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.members) or self.place.size

    @property
    def label(self) -> str:
        """Identifier that only the ranks of this group share."""
        who = hashlib.sha256(str(self.members).encode()).hexdigest()[:16] if self.members else "all"
        return f"{self.place.job}/{who}"

    def job_key(self, fresh: bytes) -> bytes:
        """Derive the group's job key from the user-supplied key. If there is none, return ``fresh``."""
        return fresh if self.user_key is None else derive_key(self.user_key, f"group {self.label}")


Board = pmi.PmiBoard | pmi.PmixBoard

_LOOPBACK = "127.0.0.1"
_KEY = 32
_LOCAL = struct.Struct(f"!{_KEY}sH")
_PORT = struct.Struct("!H")
# Format of a credential's payload: the digest of the job's name, then the key, then the port.
_MUNGE = struct.Struct(f"!{_KEY}s{_KEY}sH")
# Number of ports to try, starting at the launcher's port.
_PORTS = 8
_LOOK = 0.05
_KNOCK_SECONDS = 2.0


class MeetingMethod:
    """Method with which ranks find the store (the job's key-value store) and get its key.

    Rank 0 calls ``lead``, and all other ranks call ``follow``.
    """

    def lead(self, group: Group, key: bytes) -> Meeting:
        """Start the store, and return its address and key."""
        raise NotImplementedError

    def follow(self, group: Group, seconds: float) -> Meeting:
        """Find rank 0's store. Raises MeetingError if that takes longer than ``seconds``."""
        raise NotImplementedError


class OneHost(MeetingMethod):
    """Method for ranks on one host. Ranks are authenticated by the kernel or by a user-supplied key."""

    def lead(self, group: Group, key: bytes) -> Meeting:
        """Start the store on the loopback interface, and give its key and port to the other ranks."""
        server = StoreServer(key)
        try:
            port = server.address[1]
            if group.user_key is None:
                exchange = unix_key_server.serve_local(group.label, Secret(_LOCAL.pack(key, port)))
            else:
                exchange = unix_key_server.serve_local(group.label, _PORT.pack(port), key)
        except (OSError, AuthError) as error:
            server.close()
            raise MeetingError(str(error)) from None
        return Meeting(*server.address, key, server, exchange)

    def follow(self, group: Group, seconds: float) -> Meeting:
        """Wait for rank 0's key server, and get the store's port and key from it."""
        key = None if group.user_key is None else group.job_key(b"")
        try:
            data = unix_key_server.receive_local(group.label, seconds, key)
        except (AuthError, OSError) as error:
            raise MeetingError(str(error)) from None
        if len(data) != (_LOCAL if key is None else _PORT).size:
            raise MeetingError("what it says at its socket on this host is not understood")
        (port,) = _PORT.unpack(data[-_PORT.size :])
        return Meeting(_LOOPBACK, port, Secret(data[:_KEY]) if key is None else key)


class _Card(msgspec.Struct, array_like=True):
    """Information that rank 0 publishes in the launcher's key-value store, so that other ranks find its own store."""

    port: int
    server: bytes
    """Public key of the server at this port. The server is a ``CurveKeyServer``, or the store if the key is known."""
    addresses: list[str]


class OnBoard(MeetingMethod):
    """Method that uses the launcher's key-value store (the board), which is accessed over PMI-1 or PMIx."""

    def __init__(self, board: Board) -> None:
        self._board = board
        # Key pair of each published name. Each ``init`` uses a new name, because a board accepts one value per name.
        self._pairs: dict[str, tuple[bytes, bytes]] = {}

    def lead(self, group: Group, key: bytes) -> Meeting:
        """Start the store on all interfaces in use. On a single host, use only the loopback interface."""
        addresses = [_LOOPBACK] if group.place.one_host else own_addresses(group.interface)
        server = StoreServer(key, listeners=key_server.listen(addresses, group.ports))
        exchange = None
        try:
            card = _Card(server.address[1], zmq.utils.z85.decode(curve_pair(key, "server")[0]), addresses)
            if group.user_key is None:
                listeners = key_server.listen(addresses, group.ports)
                port = listeners[0].getsockname()[1]
                exchange = CurveKeyServer(listeners, lambda rank: self._key_of(group, rank), key, server.address[1])
                card = _Card(port, exchange.public, addresses)
            while len(msgspec.msgpack.encode(card)) > pmi.MAX_VALUE:
                card.addresses.pop()
            self._board.publish(f"{group.label}/store", msgspec.msgpack.encode(card))
        except (OSError, pmi.PmiError, pmi.PmixError) as error:
            server.close()
            if exchange is not None:
                exchange.close()
            raise MeetingError(str(error)) from None
        return Meeting(*server.address, key, server, exchange)

    def _key_of(self, group: Group, rank: int) -> bytes | None:
        try:
            return self._board.find(f"{group.label}/key {rank}", rank) if rank < group.place.size else None
        except (pmi.PmiError, pmi.PmixError):
            return None

    def follow(self, group: Group, seconds: float) -> Meeting:
        """Wait until rank 0 has published its record, then connect to its store."""
        deadline = time.monotonic() + seconds
        rank = group.place.rank
        try:
            pair = self._introduce(group, rank) if group.user_key is None else None
            card = self._wait(group, deadline)
        except (pmi.PmiError, pmi.PmixError) as error:
            raise MeetingError(str(error)) from None
        if card is None:
            raise MeetingError(f"it has left no address in {self._board.name}")
        candidates = [(address, card.port) for address in card.addresses]
        until = max(deadline, time.monotonic() + _KNOCK_SECONDS)
        if pair is not None:
            received = curve_exchange.receive(candidates, card.server, pair, rank, until)
            if received is not None:
                return Meeting(*received)
        else:
            key = group.job_key(b"")
            found = search.ask(lambda: candidates, key, until)
            if found is not None:
                return Meeting(*found, key)
        raise MeetingError(f"it does not answer at {_where(candidates)}")

    def _introduce(self, group: Group, rank: int) -> tuple[bytes, bytes]:
        """Publish this rank's public key on the launcher's key-value board, and return its key pair."""
        if group.label not in self._pairs:
            pair: tuple[bytes, bytes] = zmq.curve_keypair()
            self._board.publish(f"{group.label}/key {rank}", zmq.utils.z85.decode(pair[0]))
            self._pairs[group.label] = pair
        return self._pairs[group.label]

    def _wait(self, group: Group, deadline: float) -> _Card | None:
        pause = _LOOK
        while True:
            data = self._board.find(f"{group.label}/store", group.leader)
            if data is not None:
                try:
                    return msgspec.msgpack.decode(data, type=_Card)
                except (msgspec.MsgspecError, ValueError):
                    raise MeetingError(f"what it has left in {self._board.name} is not understood") from None
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


class AtPort(MeetingMethod):
    """Method for ranks that share a key. The store listens on a port that all ranks know."""

    def lead(self, group: Group, key: bytes) -> Meeting:
        """Start the store on the port known to all ranks."""
        listeners = key_server.listen(_addresses(group), _ports(group))
        server = StoreServer(key, listeners=listeners)
        return Meeting(*server.address, key, server)

    def follow(self, group: Group, seconds: float) -> Meeting:
        """Search for the store on all hosts on which rank 0 can run."""
        key = group.job_key(b"")
        deadline = time.monotonic() + seconds
        names = search.Names(group.place.leads, _ports(group), resolve_node, deadline)
        found = search.ask(names, key, deadline)
        if found is None:
            raise MeetingError(
                f"its store does not answer at {_where(names()) or 'a host that is known'}; perhaps the ports are "
                "behind a firewall, or the key there is another one"
            )
        return Meeting(*found, key)


class ByMunge(MeetingMethod):
    """Method for ranks on a cluster with MUNGE credentials."""

    def lead(self, group: Group, key: bytes) -> Meeting:
        """Start the store on any free port, and the key server on a port that all ranks know."""
        addresses = _addresses(group)
        server = StoreServer(key, listeners=key_server.listen(addresses, group.ports))
        payload = Secret(_MUNGE.pack(_digest(group), key, server.address[1]))
        try:
            exchange = key_server.KeyServer(key_server.listen(addresses, _ports(group)), lambda _: _credential(payload))
        except OSError as error:
            server.close()
            raise MeetingError(str(error)) from None
        return Meeting(*server.address, key, server, exchange)

    def follow(self, group: Group, seconds: float) -> Meeting:
        """Find the store through the first credential for this job that this user can decode."""
        deadline = time.monotonic() + seconds
        names = search.Names(group.place.leads, _ports(group), resolve_node, deadline)
        trouble = ""
        while True:
            for (host, _), data in search.knock(names(), _KNOCK_SECONDS, deadline):
                try:
                    digest, key, port = _unpack_munge(decode(data))
                except MungeError as error:
                    trouble = f" that this process can open ({error}; do the hosts' clocks agree?)"
                    continue
                except struct.error:
                    continue
                if digest == _digest(group):
                    return Meeting(host, port, key)
            if time.monotonic() >= deadline:
                where = _where(names()) or "a host that is known"
                raise MeetingError(f"it gives no credential{trouble} at {where}")
            time.sleep(_LOOK)


def _unpack_munge(payload: Secret) -> tuple[bytes, Secret, int]:
    """Decode a credential's payload into (digest, key, port). Raises struct.error if the payload is invalid."""
    digest, _, port = _MUNGE.unpack(payload)
    return digest, Secret(payload[len(digest) : len(digest) + _KEY]), port


def _credential(payload: bytes) -> key_server.FixedReply | None:
    try:
        return key_server.FixedReply(encode(payload))
    except MungeError:  # close the connection so that the peer retries, because the MUNGE daemon might be restarting
        return None


def _digest(group: Group) -> bytes:
    return hashlib.sha256(group.label.encode()).digest()


def _ports(group: Group) -> list[int]:
    """Return the ports that rank 0 can try.

    They are the ports just above the launcher's port, or the last ports of the user-supplied range.
    """
    if group.ports != range(1):
        return list(group.ports[-_PORTS:])
    first = group.place.port + 1
    return [port if port <= 65535 else port - 40000 for port in range(first, first + _PORTS)]


def _addresses(group: Group) -> list[str]:
    """Return rank 0's addresses: those of its interfaces in use, and those of the launcher's names for this host."""
    return own_addresses(group.interface, [a for name in group.place.leads[:8] for a in resolve_node(name)])


def _where(candidates: Sequence[tuple[str, int]]) -> str:
    shown = [f"{host}:{port}" for host, port in candidates[:6]]
    return ", ".join(shown) + (", ..." if len(candidates) > 6 else "")
