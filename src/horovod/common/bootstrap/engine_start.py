"""Create the engine from a rank's connections and shared memory."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from horovod.common.bootstrap import mpi, shared_memory
from horovod.common.bootstrap.peers import CONTROL, DATA, NODE, Link, Peer, Plan, label
from horovod.common.contract import cgroups, reports
from horovod.common.contract.log import make_sink
from horovod.common.contract.settings import LOG_LEVELS, TABLE, Settings
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.devices import libraries
from horovod.common.security.auth import Session
from horovod.common.security.cipher import Cipher

if TYPE_CHECKING:
    from horovod._core import Engine

COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


class NcclOperations(NamedTuple):
    """Collectives to run with NCCL. True lets NCCL run the collective.

    The engine runs all others, and any that NCCL does not support.
    """

    allreduce: bool = True
    allgather: bool = True
    broadcast: bool = True
    alltoall: bool = True
    reducescatter: bool = True


def nccl_operations(settings: Settings) -> NcclOperations:
    """Return which collectives the settings assign to NCCL.

    Values for unsupported libraries (mpi, ddl, ccl) select the engine.
    """
    general = settings.text("HOROVOD_GPU_OPERATIONS")
    asked = (settings.text(f"HOROVOD_GPU_{collective.upper()}") or general for collective in COLLECTIVES)
    return NcclOperations(*(way == "nccl" for way in asked))


@dataclass
class Formed:
    """Connections and shared memory of a rank. Owns the descriptors until the engine takes them over.

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
        shared_memory.close(self.descriptors)
        self.descriptors = []


def make_engine(plan: Plan, peers: Sequence[Peer], formed: Formed, settings: Settings, env: WorkerEnv) -> "Engine":
    """Create the engine. It takes ownership of the connections and descriptors in ``formed``.

    Raises:
        ValueError: If the engine rejects a setting. The message names the setting.
        ImportError: If the native engine was built from different sources than the Python files.
    """
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
    quota = cgroups.cores()
    usable = len(cores) if quota is None else min(len(cores), quota)
    return settings.integer("HOROVOD_SPIN") if len(neighbours) <= usable else 0


def _cpu(settings: Settings, env: WorkerEnv) -> int:
    """Return the CPU core for the engine's thread, or -1 for no pinning.

    The launcher's local rank selects the core. The rank's position within its node is unsuitable, because with
    HOROVOD_TRANSPORT=tcp every rank counts as a separate node.
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
