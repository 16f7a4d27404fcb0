"""Search for the address of the job's store among candidate addresses.

All candidates are tried at the same time. Only the real store can answer, because the connection is encrypted with the
store's key.
"""

import contextlib
import ipaddress
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import zmq

from horovod.common.key_exchange.key_server import read_all
from horovod.common.network import interfaces
from horovod.common.network.interfaces import to_listen
from horovod.common.store.messages import Get, curve_pair
from horovod.common.store.sockets import dial

Candidate = tuple[str, int]

_AT_ONCE = 256
# Interval in seconds at which to check the deadline and to look for new candidates.
_STEP = 0.5
# Maximum size of a message in bytes.
_LONGEST = 4096
# Maximum number of parallel host name lookups.
_LOOK_UPS = 8
# Seconds before an unknown name is looked up again.
_UNKNOWN = 3.0


def ask(candidates: Callable[[], Iterable[Candidate]], key: bytes, deadline: float) -> Candidate | None:
    """Return the first candidate at which a store with this job key answers, or None after ``deadline``.

    Args:
        candidates: Function that returns the candidates known so far. Called repeatedly.
        key: The job's key.
        deadline: Monotonic time in seconds.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    poller = zmq.Poller()
    sockets: dict[Candidate, zmq.Socket[bytes]] = {}
    try:
        while True:
            for candidate in candidates():
                if candidate not in sockets and len(sockets) < _AT_ONCE:
                    sockets[candidate] = _connect(context, candidate, key)
                    poller.register(sockets[candidate], zmq.POLLIN)
            left = deadline - time.monotonic()
            ready = dict(poller.poll(int(max(0, min(_STEP, left)) * 1000)))
            for candidate, sock in sockets.items():
                if sock in ready:
                    return candidate
            if left <= 0:
                return None
    finally:
        context.destroy(linger=0)


def _connect(context: "zmq.Context[zmq.Socket[bytes]]", candidate: Candidate, key: bytes) -> "zmq.Socket[bytes]":
    sock = dial(context, *candidate, curve_pair(key, "client"), curve_pair(key, "server")[0], _LONGEST)
    # Ignore the content: any answer proves that this is the store.
    question = msgspec.msgpack.encode(Get(1, ["anything"], 0.0))
    with contextlib.suppress(zmq.Again):  # a service other than the store may listen at the address
        sock.send(question, zmq.NOBLOCK)
    return sock


def knock(candidates: Sequence[Candidate], seconds: float, deadline: float) -> Iterable[tuple[Candidate, bytes]]:
    """Yield (address, data) from the key servers at these addresses, one after the other.

    Args:
        candidates: Addresses to try.
        seconds: Timeout for each connection attempt, and for receiving its data.
        deadline: Monotonic time in seconds at which to stop.
    """
    for candidate in candidates:
        if time.monotonic() >= deadline:
            return
        try:
            with socket.create_connection(candidate, timeout=_within(seconds, deadline)) as sock:
                data = read_all(sock, _within(seconds, deadline))
        except OSError:
            continue
        if data:
            yield candidate, data


def _within(seconds: float, deadline: float) -> float:
    """Return a socket timeout: the time until the deadline, but at most ``seconds``.

    It is never 0, because that means non-blocking.
    """
    return max(0.01, min(seconds, deadline - time.monotonic()))


class Names:
    """Provides candidate addresses by looking up host names repeatedly.

    The name of a starting pod might not be known yet, so lookups are repeated. They run in threads, because a lookup
    without a reachable name server can take longer than a rank waits for rank 0.
    """

    def __init__(
        self, names: Sequence[str], ports: Sequence[int], resolve: Callable[[str], list[str]], deadline: float
    ) -> None:
        """Start without any lookup. The first call starts the lookups.

        Args:
            names: Host names, most likely first.
            ports: Ports to combine with each address.
            resolve: Function that returns the addresses of a name.
            deadline: Monotonic time in seconds at which to stop all lookups and waiting.
        """
        self._names = names
        self._ports = ports
        self._resolve = resolve
        self._deadline = deadline
        self._cache: dict[str, list[str]] = {}
        self._again: dict[str, float] = {}  # time of the next lookup of each name that is still unknown
        self._running: set[str] = set()
        self._changed = threading.Condition()
        self._begin = time.monotonic()

    def __call__(self) -> list[Candidate]:
        """Return all addresses found so far, in the order of the host names. This takes at most half a second.

        All names after the first one are looked up only if the first host does not answer.
        """
        now = time.monotonic()
        waited = now - self._begin
        wanted = list(dict.fromkeys(self._names[: 1 if waited < 2 else 8 if waited < 5 else 64]))
        with self._changed:
            if now < self._deadline:
                for name in wanted:
                    self._start(name, now)
                self._changed.wait_for(lambda: not self._running, max(0.0, min(_STEP, self._deadline - now)))
            return [(address, port) for name in wanted for address in self._cache.get(name, ()) for port in self._ports]

    def _start(self, name: str, now: float) -> None:
        missing = name not in self._cache and name not in self._running and now >= self._again.get(name, 0.0)
        if missing and len(self._running) < _LOOK_UPS:
            self._running.add(name)
            threading.Thread(target=self._look_up, args=(name,), name="horovod-names", daemon=True).start()

    def _look_up(self, name: str) -> None:
        found: list[str] = []
        try:
            found = self._resolve(name)
        finally:
            with self._changed:
                self._running.discard(name)
                if found:
                    self._cache[name] = found
                self._again[name] = time.monotonic() + _UNKNOWN
                self._changed.notify_all()


def resolve(name: str) -> list[str]:
    """Return the addresses of a host, or no addresses if its name is unknown."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


_SECONDS = 5.0
_SILENT_SECONDS = 10.0


def own_addresses(interface: str = "", named: Sequence[str] = ()) -> list[str]:
    """Return the addresses on which the store should listen, most likely first.

    The addresses in ``named`` that belong to this host come first. The addresses on which ranks of this host listen
    come next, because another host might be able to use only one of several networks.

    Args:
        interface: Value of HOROVOD_GLOO_IFACE, which restricts the result to these interfaces.
        named: Addresses with which a launcher can refer to this host.

    Raises:
        ValueError: If HOROVOD_GLOO_IFACE names no usable interface.
        OSError: If the interfaces cannot be listed.
    """
    mine = [each.address for each in to_listen(interfaces.scan(), interface, alone=False)]
    if interface:
        return mine
    first = [name for name in named if name in mine and not _is_loopback(name)]
    # A host's own name can resolve to a loopback address, such as 127.0.1.1 on Debian. Sort such addresses last.
    loopback = [name for name in named if _is_loopback(name)]
    return list(dict.fromkeys([*first, *mine, *loopback]))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def resolve_node(name: str) -> list[str]:
    """Return a host's addresses, asking Slurm if the name cannot be resolved.

    The result is empty if they are unknown.
    """
    return resolve(name) or _ask_slurm(name)


_slurm: dict[str, list[str]] = {}
# Time at which to query Slurm again if its controller has not answered.
_silent_until = [0.0]


def _ask_slurm(name: str) -> list[str]:
    """Return a host's addresses from its NodeAddr, which Slurm itself uses to reach the node."""
    program = shutil.which("scontrol")
    if program is None or not re.fullmatch(r"[\w.-]+", name) or time.monotonic() < _silent_until[0]:
        return _slurm.get(name, [])
    if not _slurm.get(name):
        try:
            shown = subprocess.run(
                [program, "-o", "show", "node", name], capture_output=True, text=True, timeout=_SECONDS, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            _silent_until[0] = time.monotonic() + _SILENT_SECONDS
            return []
        match = re.search(r"\bNodeAddr=(\S+)", shown)
        _slurm[name] = resolve(match[1]) if match and match[1] != name else []
    return _slurm[name]
