"""Create the engine from a rank's connections and from memory that the ranks of a node share.

The memory (one memfd) and the doorbells (one eventfd per rank) have no names, so nothing is left behind even after
kill -9. The node's leader creates them, and sends their descriptors over the authenticated Unix sockets of ``links``.
"""

import array
import errno
import fcntl
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from horovod.common.bootstrap import mpi
from horovod.common.bootstrap.peers import CONTROL, DATA, NODE, Link, Peer, Plan, label
from horovod.common.contract import kernel, reports
from horovod.common.contract.kernel import MemoryFileError, create_memory_file
from horovod.common.contract.log import make_sink
from horovod.common.contract.settings import LOG_LEVELS, TABLE, Settings
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.devices import libraries
from horovod.common.security.auth import Session
from horovod.common.security.cipher import Cipher

if TYPE_CHECKING:
    from horovod._core import Engine


_BATCH = 200  # number of descriptors per message, below the kernel's limit of 253


def arena_bytes(requested: int, ranks: int) -> int:
    """Return the size of each rank's arena in bytes, rounded up to whole pages.

    Args:
        requested: Size in bytes, or -1 for this host's memory divided by ``ranks``. Untouched pages use no memory.
        ranks: Number of ranks on this host.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    if requested < 0:
        requested = page * os.sysconf("SC_PHYS_PAGES") // ranks
    return -(-requested // page) * page


def provide(plan: Plan, links: Mapping[Link, socket.socket], settings: Settings, seconds: float) -> list[int]:
    """Return the descriptor of the shared memory (or -1), followed by each local rank's doorbell.

    A doorbell is an eventfd that wakes its rank. The node's leader creates the memory and the doorbells, and sends
    their descriptors to the other ranks.

    Raises:
        OSError: If a descriptor cannot be created or received. If the memory is too large, the message names the
            settings to change. No descriptor stays open.
    """
    from horovod import _core

    count = len(plan.local)
    if count == 1:
        return [-1, *make_bells(1)]
    if not plan.leads:
        return receive(links[NODE, plan.leader], count + 1, seconds)
    arena, staging = settings.integer("HOROVOD_ARENA_BYTES"), settings.integer("HOROVOD_STAGING_BYTES")
    ring = settings.integer("HOROVOD_RING_BYTES")

    def make_segment(bytes_each: int) -> list[int]:
        whole = _core.segment_bytes(count, staging, ring, arena_bytes(bytes_each, count))
        try:
            return make(whole, count)
        except MemoryFileError:
            raise  # the system forbids in-memory files of any size, so do not suggest a smaller size
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            if bytes_each == -1:  # the user has not requested a size, so continue without shared memory
                return make_segment(0)
            raise OSError(
                error.errno,
                f"{whole} bytes of shared memory for {count} ranks are refused: {error.strerror}; they follow from "
                f"HOROVOD_ARENA_BYTES, which is {arena}, and HOROVOD_STAGING_BYTES, which is {staging}; lower them, or "
                "raise the memory and the limit of file sizes (ulimit -f)",
            ) from None

    made = make_segment(arena)
    try:
        for rank in plan.local_children:
            send(links[NODE, rank], made, seconds)
    except OSError:
        close(made)
        raise
    return made


def make(size: int, ranks: int) -> list[int]:
    """Create a zeroed memfd of ``size`` bytes, then ``ranks`` eventfds. Return their descriptors in this order.

    Raises:
        OSError: If the memory or an eventfd cannot be created. Descriptors created before are closed.
    """
    made: list[int] = []
    try:
        made.append(create_memory_file("horovod-segment"))
        os.ftruncate(made[0], size)
        # Seal the size. If one rank shrank the memory, the other ranks would die of SIGBUS.
        fcntl.fcntl(made[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        made += make_bells(ranks)
    except OSError:
        close(made)
        raise
    return made


def make_bells(ranks: int) -> list[int]:
    """Create one non-blocking eventfd for each rank, and return their descriptors."""
    made: list[int] = []
    try:
        for _ in range(ranks):
            made.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    except OSError:
        close(made)
        raise
    return made


def send(sock: socket.socket, descriptors: Sequence[int], timeout: float) -> None:
    """Send descriptors in batches, each with one byte of data. Raises OSError or TimeoutError on failure."""
    deadline = time.monotonic() + timeout
    for begin in range(0, len(descriptors), _BATCH):
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        socket.send_fds(sock, [b"d"], list(descriptors[begin : begin + _BATCH]))


def receive(sock: socket.socket, count: int, timeout: float) -> list[int]:
    """Receive ``count`` file descriptors sent by ``send``. On OSError or TimeoutError, all of them are closed."""
    deadline = time.monotonic() + timeout
    received: list[int] = []
    try:
        while len(received) < count:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            data, batch, flags = _receive_batch(sock)
            received += batch
            if not data:
                raise ConnectionError(0, "the node's first rank closed the connection")
            if not batch or flags & socket.MSG_CTRUNC:
                raise OSError(0, "descriptors were lost on the way; is the limit of open files (ulimit -n) too low?")
        if len(received) != count:
            raise OSError(0, f"{len(received)} descriptors came instead of {count}")
    except OSError:
        close(received)
        raise
    return received


def _receive_batch(sock: socket.socket) -> tuple[bytes, list[int], int]:
    # Make the descriptors close-on-exec here, because some Python versions ignore the flags of socket.recv_fds.
    batch = array.array("i")
    data, ancillary, flags, _ = sock.recvmsg(1, socket.CMSG_SPACE(_BATCH * batch.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            batch.frombytes(content[: len(content) - len(content) % batch.itemsize])
    return data, batch.tolist(), flags


def close(descriptors: Sequence[int]) -> None:
    """Close these descriptors, skipping -1."""
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


class NcclOperations(NamedTuple):
    """Selection of the collectives that run with NCCL.

    The engine itself runs all other collectives, and operations that NCCL does not support.
    """

    allreduce: bool = True
    allgather: bool = True
    broadcast: bool = True
    alltoall: bool = True
    reducescatter: bool = True


def nccl_operations(settings: Settings) -> NcclOperations:
    """Return which collectives run with NCCL according to the settings.

    Values for unsupported libraries (mpi, ddl, ccl) select the engine.
    """
    general = settings.text("HOROVOD_GPU_OPERATIONS")
    asked = (settings.text(f"HOROVOD_GPU_{collective.upper()}") or general for collective in COLLECTIVES)
    return NcclOperations(*(way == "nccl" for way in asked))


@dataclass
class Formed:
    """Connections and shared memory of a rank. Owns the file descriptors until they are passed to the engine.

    Attributes:
        links: Connected sockets by link.
        descriptors: Shared memory (or -1), followed by each local rank's doorbell.
        cipher: Cipher of encrypted links, or None.
        sessions: Session keys of encrypted links.
        first_address: IP address of rank 0, or "" without a data link to rank 0.
    """

    links: dict[Link, socket.socket]
    descriptors: list[int]
    cipher: Cipher | None = None
    sessions: dict[Link, Session] = field(default_factory=dict)
    first_address: str = ""

    def close(self) -> None:
        for sock in self.links.values():
            sock.close()
        close(self.descriptors)
        self.descriptors = []


def make_engine(plan: Plan, peers: Sequence[Peer], formed: Formed, settings: Settings, env: WorkerEnv) -> "Engine":
    """Create the engine. It takes ownership of the connections and descriptors in ``formed``.

    Raises:
        ValueError: If the engine rejects a setting. The message names the setting.
        ImportError: If the native engine was built from different sources than the Python files.
    """  # noqa: DOC501
    from horovod import _core

    _check_texts(settings)
    config = _core.EngineConfig()
    try:
        _set_up(config, plan, peers, settings, env)
    except AttributeError as error:
        if type(config).__name__ not in str(error):
            raise
        raise ImportError(
            f"the native engine {_core.__file__} is older than the Python files of this package ({error}); it was "
            "built from another state of the sources: install the package again"
        ) from None
    _core.set_log_sink(make_sink(plan.me, settings.flag("HOROVOD_LOG_HIDE_TIME")))

    for sock in formed.links.values():
        sock.setblocking(False)
    config.segment_fd = formed.descriptors[0]
    config.event_fds = formed.descriptors[1:]
    if formed.cipher is not None:
        config.cipher, config.cipher_library = formed.cipher.name, formed.cipher.library
    for link, session in formed.sessions.items():
        config.encrypt(formed.links[link].fileno(), session.send, session.receive)
    formed.sessions = {}
    down = [*((NODE, rank) for rank in plan.local_children), *((CONTROL, rank) for rank in plan.remote_children)]
    config.child_fds = {link[1]: formed.links[link].detach() for link in down}
    up = (CONTROL if plan.leads else NODE, plan.parent)
    config.parent_fd = formed.links[up].detach() if plan.parent >= 0 else -1
    control = {**config.child_fds, **({plan.parent: config.parent_fd} if plan.parent >= 0 else {})}
    mpi.note_links((config.labels[rank], descriptor) for rank, descriptor in control.items() if config.mpi_ranks)
    config.data_fds = {rank: formed.links[DATA, rank].detach() for rank in plan.remote}
    formed.descriptors = []
    return _core.Engine(config)


def _set_up(config: Any, plan: Plan, peers: Sequence[Peer], settings: Settings, env: WorkerEnv) -> None:
    """Copy the settings into the engine's configuration."""
    config.rank = plan.me
    config.size = len(peers)
    config.node_of = plan.node_of
    config.labels = [label(rank, peer) for rank, peer in enumerate(peers)]
    for setting in TABLE:
        if setting.engine and setting.name not in _SPECIAL:
            setattr(config, setting.engine, settings.values[setting.name])
    config.report_dir = reports.on_this_host(config.report_dir)
    config.stall_warning = (
        0.0 if settings.flag("HOROVOD_STALL_CHECK_DISABLE") else settings.number("HOROVOD_STALL_CHECK_TIME_SECONDS")
    )
    # Heartbeats detect lost hosts, so single-host jobs do not need them.
    if len({peer.hostname for peer in peers}) > 1:
        config.heartbeat = settings.number("HOROVOD_HEARTBEAT_TIMEOUT")
    config.spins = _spins(plan, peers, settings)
    config.cpu = _cpu(settings, env)
    _look_for_nccl(config, settings)
    config.mpi_ranks = mpi.ranks(settings, [peer.world_rank for peer in peers])
    config.mpi_reduces = settings.text("HOROVOD_MPI_REDUCTION") == "mpi"
    config.log_level = LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL"))


def _look_for_nccl(config: Any, settings: Settings) -> None:
    """Configure NCCL: where to look for it when first needed, and which collectives use it."""
    from horovod import _core

    allowed = nccl_operations(settings)
    config.nccl_kinds = [getattr(_core, f"KIND_{name.upper()}") for name in COLLECTIVES if getattr(allowed, name)]
    if config.nccl_kinds:
        search = libraries.nccl_search(os.environ)
        config.nccl_library, config.nccl_candidates = search.chosen, search.candidates
        libraries.have_nccl_warn(os.environ)
    config.nccl_by_hosts = any(settings.flag(f"HOROVOD_{name}_ALLREDUCE") for name in ("HIERARCHICAL", "TORUS"))


def _check_texts(settings: Settings) -> None:
    """Validate settings that the engine parses, so that error messages name the setting."""
    from horovod import _core

    for name, read in (
        ("HOROVOD_ALGORITHM", lambda text: _core.choose_algorithm("allreduce", 0, 0, [0], override=text)),
        ("HOROVOD_TUNING", _core.tuning),
    ):
        try:
            read(settings.text(name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


_SPECIAL = {
    "HOROVOD_HEARTBEAT_TIMEOUT",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "HOROVOD_SPIN",
    "HOROVOD_THREAD_AFFINITY",
    "HOROVOD_LOG_LEVEL",
}


def _spins(plan: Plan, peers: Sequence[Peer], settings: Settings) -> int:
    """Return how many times a waiting rank polls before it sleeps, or 0 if ranks share cores.

    On a shared core, polling would take CPU time from the rank that it waits for.
    """
    # A rank that is pinned to a core sees only this core, so combine the cores of all ranks on the host. Identify the
    # host by its name, because with HOROVOD_TRANSPORT=tcp every rank counts as a separate node.
    neighbours = [peer for peer in peers if peer.hostname == peers[plan.me].hostname]
    cores = {core for peer in neighbours for core in peer.cpus}
    quota = kernel.cores()
    usable = len(cores) if quota is None else min(len(cores), quota)
    return settings.integer("HOROVOD_SPIN") if len(neighbours) <= usable else 0


def _cpu(settings: Settings, env: WorkerEnv) -> int:
    """Return the CPU core for the engine's thread, or -1 for no pinning.

    The launcher's local rank selects the core. The rank's position within its node is unsuitable, because with
    HOROVOD_TRANSPORT=tcp every rank counts as a separate node.

    Raises:
        ValueError: If HOROVOD_THREAD_AFFINITY has too few cores, or a core that this process may not use.
    """
    cores = settings.integers("HOROVOD_THREAD_AFFINITY")
    if cores is None:
        return -1
    if len(cores) > 1 and len(cores) <= env.local_rank:
        raise ValueError(
            f"HOROVOD_THREAD_AFFINITY must be one core, or one for each of the {env.local_size} local ranks, got "
            f"{','.join(map(str, cores))}"
        )
    core = cores[0] if len(cores) == 1 else cores[env.local_rank]
    usable = os.sched_getaffinity(0)
    if core not in usable:
        raise ValueError(
            "HOROVOD_THREAD_AFFINITY must be cores that the process may run on "
            f"({', '.join(map(str, sorted(usable)))}), got {','.join(map(str, cores))}, which gives local rank "
            f"{env.local_rank} core {core}"
        )
    return core
