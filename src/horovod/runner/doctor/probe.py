"""Program that the doctor runs as the only worker on each host.

It writes a HostReport, which describes the host and the results of network checks with the other hosts, to its result
file. The program has the same environment, limits and cores as a training script.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import socket
import struct
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from horovod._bounded_server import BoundedServer
from horovod._version import __version__
from horovod.common.contract import kernel
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import (
    Endpoint,
    Interface,
    network_identity,
    parse_names,
    parse_ports,
    scan,
    source_address,
    to_listen,
    to_try,
)
from horovod.common.security.auth import AuthError, Place, accept, connect, derive_key
from horovod.common.store.client import StoreClient, StoreError
from horovod.runner.agent.workers import RESULT_FD
from horovod.runner.command.check_build import OF_DISTRIBUTION
from horovod.runner.doctor import container, devices, mpi
from horovod.runner.doctor.report import ConnectionAttempt, HostReport, LinkSpeed

# The functions that examine this host never raise an exception. The report explains each missing value instead.

DISTRIBUTIONS = (*OF_DISTRIBUTION, "numpy", "mpi4py")
LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
    "fsize": resource.RLIMIT_FSIZE,
}
SEGMENT = 64 << 20  # Bytes of shared memory that a small job needs on each host


def examine() -> HostReport:
    """Examine this host without connecting to other hosts."""
    engine_error, ciphers = _engine()
    memory = _memory()
    return HostReport(
        version=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        kernel=platform.release(),
        engine_error=engine_error,
        ciphers=ciphers,
        frameworks=_versions(DISTRIBUTIONS),
        interfaces=_interfaces(),
        wanted_interfaces=os.environ.get("HOROVOD_GLOO_IFACE", ""),
        cores=len(os.sched_getaffinity(0)),
        all_cores=os.cpu_count() or 0,
        quota=kernel.cores(),
        load=os.getloadavg()[0],
        memory=memory[0],
        memory_available=memory[1],
        memfd_error=_memfd_error(SEGMENT),
        shm_free=_free("/dev/shm"),
        limits={name: resource.getrlimit(number) for name, number in LIMITS.items()},
        devices=devices.examine(),
        mpi=mpi.examine(),
        container=container.examine(),
    )


def _engine() -> tuple[str, list[str]]:
    """Load the engine. Return why this failed (an empty string if it did not), and the engine's ciphers."""
    try:
        from horovod.common.security import cipher

        return "", list(cipher.available())
    except Exception as error:  # Importing from a broken installation can raise any exception.
        return f"{type(error).__name__}: {error}"[:4000], []


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _interfaces() -> list[Interface]:
    try:
        return scan()
    except OSError:
        return []


def _memory() -> tuple[int, int]:
    """Return the total and available memory in bytes.

    A container's limit takes precedence if it is lower than the machine's memory.
    """
    machine, room = _meminfo(), kernel.memory()
    total, free = machine.get("MemTotal", -1), machine.get("MemAvailable", -1)
    return (total, free) if room is None else (min(total, room.limit), min(free, room.free))


def _meminfo() -> dict[str, int]:
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    return found


def _memfd_error(size: int) -> str:
    """Return why ranks on this host cannot share memory, or an empty string if they can."""
    try:
        fd = kernel.create_memory_file("horovod-doctor")
    except kernel.MemoryFileError as error:
        return str(error)
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        return f"{size >> 20} MiB of shared memory are refused: {error.strerror}"
    finally:
        os.close(fd)
    return ""


def _free(path: str) -> int:
    try:
        stat = os.statvfs(path)
    except OSError:
        return -1
    return stat.f_bavail * stat.f_frsize if stat.f_blocks else -1  # A size of 0 means that the tmpfs has no size limit.


# Each connection begins with the same handshake as the connections of a job (common/security/auth.py). Only ranks of
# this job can therefore connect.

# Purpose codes of the probe's connections in the handshake. The connections of a job use smaller codes.
REACH, MEASURE = 100, 101
EPOCH = 1
# Seconds that the probe waits for a connection to an address. Ranks of a job wait only 0.25 s before they also try the
# peer's other addresses.
REACH_SECONDS = 2.0
# Maximum duration of a handshake in seconds. It is long, because the peer can be busy.
REPLY_SECONDS = 10.0
STALL_SECONDS = 10.0  # Seconds without progress after which a speed measurement fails
ECHOES = 100
STREAM_SECONDS = 0.3
PIECE = 256 << 10
_COUNTED = struct.Struct("!Qd")  # Wire format of a throughput result: bytes received and duration in seconds
_THREADS = 32
# Maximum number of connections of a listener
_LIMIT = 4 * _THREADS
_GRACE = 1.0  # Minimum time in seconds that each connection has for its handshake, even under heavy load


def rounds(count: int, max_rounds: int) -> list[list[tuple[int, int]]]:
    """Arrange the pairs of ranks in rounds, so that each rank belongs to at most one pair per round.

    Each pair (i, j) has i < j. If `max_rounds` rounds suffice, each pair of ranks occurs exactly once, as in a
    round-robin tournament.

    Args:
        count: Number of ranks.
        max_rounds: Maximum number of rounds.
    """
    ring = list(range(count)) if count % 2 == 0 else [*range(count), -1]
    made = []
    for _ in range(min(max_rounds, len(ring) - 1)):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        made.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return made


class Server:
    """Server that accepts connections from other ranks on all listeners until it is closed."""

    def __init__(self, listeners: Listeners, key: bytes, rank: int) -> None:
        self._listeners = listeners
        self._key = key
        self._rank = rank
        self._servers = [
            BoundedServer(sock, self._reply, _LIMIT, REPLY_SECONDS, "hvd-doctor", _GRACE) for sock in listeners.tcp
        ]

    def _reply(self, sock: socket.socket, _client: object, server: BoundedServer) -> None:
        place = accept(sock, self._key, EPOCH, self._rank, REPLY_SECONDS)
        server.received(sock)
        if place.purpose == MEASURE:
            serve_measurement(sock)

    def close(self) -> None:
        """Stop serving and close the listeners."""
        for server in self._servers:
            server.close()
        self._listeners.close()


def dial(endpoint: Endpoint, key: bytes, purpose: int, rank: int, peer: int) -> socket.socket:
    """Connect to a rank, and return the authenticated socket. Raises OSError or AuthError."""
    sock = socket.create_connection((endpoint.address, endpoint.port), timeout=REACH_SECONDS)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connect(sock, key, Place(purpose, EPOCH, rank, peer), REPLY_SECONDS)
    except BaseException:
        sock.close()
        raise
    return sock


def try_all(targets: Sequence[tuple[int, Endpoint]], key: bytes, rank: int) -> list[ConnectionAttempt]:
    """Try to connect to each (peer, endpoint) in parallel, and return the results in the same order."""

    def one(target: tuple[int, Endpoint]) -> ConnectionAttempt:
        peer, endpoint = target
        try:
            dial(endpoint, key, REACH, rank, peer).close()
            outcome = ""
        except (OSError, AuthError) as error:
            outcome = describe(error)
        return ConnectionAttempt(peer, endpoint.address, endpoint.interface, outcome)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(one, targets))


def describe(error: Exception) -> str:
    """Return a short explanation of why a connection failed."""
    if isinstance(error, AuthError):
        return "another process answers"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(getattr(error, "strerror", None) or error).lower()


def measure(endpoint: Endpoint, key: bytes, rank: int, peer: int) -> LinkSpeed:
    """Measure the median round-trip time of small messages, and the throughput of a single stream."""
    stage = "connecting"
    try:
        with dial(endpoint, key, MEASURE, rank, peer) as sock:
            sock.settimeout(STALL_SECONDS)
            stage = "small messages"
            round_trip = _echo(sock)
            stage = "a stream of large packets"
            return LinkSpeed(
                peer, endpoint.address, endpoint.interface, round_trip_us=round_trip * 1e6, gigabits=_stream(sock)
            )
    except (OSError, AuthError) as error:
        text = f"{stage}: {describe(error)}"
        return LinkSpeed(peer, endpoint.address, endpoint.interface, error=text)


def _echo(sock: socket.socket) -> float:
    taken = []
    for _ in range(ECHOES):
        begin = time.perf_counter()
        sock.sendall(b"?")
        _receive(sock, 1)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[len(taken) // 2]


def _stream(sock: socket.socket) -> float:
    """Send data for STREAM_SECONDS, and return the throughput in Gbit/s that the receiver measured."""
    piece = memoryview(bytearray(PIECE))
    end = time.perf_counter() + STREAM_SECONDS
    while time.perf_counter() < end:
        rest = piece
        while rest:
            # Use `send` instead of `sendall`, so that the socket's timeout applies to each part of the data.
            rest = rest[sock.send(rest) :]
    sock.shutdown(socket.SHUT_WR)
    count, seconds = _COUNTED.unpack(_receive(sock, _COUNTED.size))
    return float(count * 8 / max(seconds, 1e-9) / 1e9)


def serve_measurement(sock: socket.socket) -> None:
    """Answer the messages of `measure` on a connection from another rank."""
    sock.settimeout(STALL_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(ECHOES):
        _receive(sock, 1)
        sock.sendall(b"!")
    buffer = bytearray(PIECE)
    count, begin = sock.recv_into(buffer), time.perf_counter()
    while got := sock.recv_into(buffer):
        count += got
    sock.sendall(_COUNTED.pack(count, time.perf_counter() - begin))


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError(0, "the other side hung up")
        data += piece
    return data


ROUNDS = 7  # Number of rounds in which pairs of hosts measure their speed; 7 rounds cover all pairs of up to 8 hosts
MEET_SECONDS = 30.0


class _Meeting(msgspec.Struct, array_like=True):
    """Message that each rank sends to all other ranks before the checks."""

    network: str
    endpoints: list[Endpoint]


def main() -> None:
    """Check this host and its network, and write the report to the result file."""
    fd = int(os.environb.pop(RESULT_FD))
    report = examine()
    env = WorkerEnv.from_environ()
    if env.size > 1:
        try:
            report = _with_network(report, env)
        except (StoreError, ValueError, OSError) as error:
            report = msgspec.structs.replace(report, pairs_error=str(error)[:4000])
    with open(fd, "wb") as file:
        file.write(msgspec.msgpack.encode(report))


def _with_network(report: HostReport, env: WorkerEnv) -> HostReport:
    assert env.rendezvous_addr is not None
    assert env.rendezvous_port is not None
    job_key = env.job_key()
    key = derive_key(job_key, "doctor")
    ports = parse_ports(os.environ.get("HOROVOD_PORT_RANGE", "").strip())
    # Check all interfaces even if the user selected one, because another interface might solve a problem.
    listeners = Listeners(to_listen(report.interfaces, "", alone=False), 64, ports)
    server = Server(listeners, key, env.rank)
    try:
        with StoreClient(job_key, env.rendezvous_addr, env.rendezvous_port) as store:
            mine = msgspec.msgpack.encode(_Meeting(network_identity(), listeners.endpoints))
            _, values = store.exchange("doctor", env.rank, env.size, mine, MEET_SECONDS)
            peers = [msgspec.msgpack.decode(value, type=_Meeting) for value in values]
            tried = _try(peers, key, env.rank)
            _, values = store.exchange("tried", env.rank, env.size, msgspec.msgpack.encode(tried), MEET_SECONDS)
            everybodys = [msgspec.msgpack.decode(value, type=list[ConnectionAttempt]) for value in values]
            measured = []
            for number, round_ in enumerate(rounds(env.size, ROUNDS)):
                for pair in round_:
                    if env.rank in pair:
                        measured += _measure(pair, env.rank, peers, everybodys, key)
                store.exchange(f"measured {number}", env.rank, env.size, b"", MEET_SECONDS)
    finally:
        server.close()
    return msgspec.structs.replace(report, tried=tried, measured=measured)


def _try(peers: list[_Meeting], key: bytes, rank: int) -> list[ConnectionAttempt]:
    mine = peers[rank]
    targets = [
        (number, endpoint)
        for number, peer in enumerate(peers)
        if number != rank
        for endpoint in to_try(mine.endpoints, peer.endpoints, peer.network == mine.network, source_address)
    ]
    return try_all(targets, key, rank)


def _measure(
    pair: tuple[int, int], rank: int, peers: list[_Meeting], tried: list[list[ConnectionAttempt]], key: bytes
) -> list[LinkSpeed]:
    """Measure the speed of a connection between two ranks, or return an empty list if the other rank measures it.

    The lower rank measures, unless only the higher rank can connect.
    """
    wanted = parse_names(os.environ.get("HOROVOD_GLOO_IFACE", ""))
    for source, target in (pair, pair[::-1]):
        good = [each for each in tried[source] if each.peer == target and not each.outcome]
        good.sort(key=lambda each: bool(wanted) and each.interface not in wanted)
        if good:
            endpoint = next(each for each in peers[target].endpoints if each.address == good[0].address)
            return [measure(endpoint, key, rank, target)] if source == rank else []
    return []


if __name__ == "__main__":
    main()
