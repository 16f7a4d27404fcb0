"""Makes an engine out of the worker environment and the settings: meet in the store, connect, share memory, start.

    1. exchange   every rank tells the store who and where it is; each node's leader gets everybody's records and passes
                  them on to the others (records.py); the round's number is the epoch
    2. connect    links.Former opens and authenticates the sockets; a node's leader passes the shared memory on
    3. start      the engine gets descriptors and numbers
    4. confirm    a second exchange: init returns on all ranks or fails on all

Each init is an epoch of its own, so nothing of an earlier one, failed or shut down, is ever taken for part of it.
"""

import contextlib
import errno
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from horovod._version import __version__
from horovod.common.contract import descriptors
from horovod.common.contract.debugging import patient
from horovod.common.contract.log import make_sink
from horovod.common.contract.settings import LOG_LEVELS, Settings, agree
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.handover.meeting import find_store
from horovod.common.network import congestion, keepalive
from horovod.common.network.endpoints import Endpoint, parse_ports, to_listen
from horovod.common.network.interfaces import network_identity, scan
from horovod.common.network.listeners import Listeners
from horovod.common.security import cipher
from horovod.common.security.auth import derive_key
from horovod.common.security.cipher import Cipher
from horovod.common.security.object_seal import Seals
from horovod.common.state import Job
from horovod.common.store.client import Met, StoreClient, StoreError, StoreTimeout
from horovod.common.wiring import calibration, records, shared_memory
from horovod.common.wiring.engine_start import Formed, make_engine
from horovod.common.wiring.link_errors import LinkError
from horovod.common.wiring.links import CONTROL, DATA, NODE, Former, Link
from horovod.common.wiring.peers import (
    Peer,
    Plan,
    check_agreement,
    decode_peers,
    label,
    machine_identity,
    make_job,
    make_plan,
    node_of,
)
from horovod.common.wiring.waited_in_vain import waited_in_vain

if TYPE_CHECKING:
    from horovod._core import Engine

_CONFIRM_SECONDS = 5.0


class _ToldError(LinkError):
    """Everybody has heard of it."""


def start(
    env: WorkerEnv, members: list[int] | None, process_sets: list[list[int]], dynamic: bool
) -> tuple[Job, "Engine"]:
    """Joins the job that ``env`` describes and starts its engine.

    ``members``: sorted world ranks that form the job (None: all). ``process_sets``, ``dynamic``: what init was given;
    compared between ranks. Raises ValueError naming what is wrong or what was waited for; nothing stays open then.
    """
    settings = patient(Settings.from_environ())
    dynamic = dynamic or settings.flag("HOROVOD_DYNAMIC_PROCESS_SETS")
    if members is not None and (env.rank not in members or members[-1] >= env.size):
        raise ValueError(
            f"comm is {members}, accepted are world ranks from 0 to {env.size - 1}, this process's ({env.rank}) among "
            "them"
        )
    if env.size == 1 or (members is not None and len(members) == 1):
        env.keep_key()
        return _start_alone(env, settings, dynamic)
    if members is None or len(members) == env.size:
        settings = _calibrated(env, settings)
    return _Joining(env, settings, members, process_sets, dynamic).run()


def _calibrated(env: WorkerEnv, settings: Settings) -> Settings:
    """With the sizes measured on this host for a job of this shape, if there are any and nothing speaks against them.
    On rank 0, from which the others get them."""
    if env.rank != 0 or settings.text("HOROVOD_TUNING") or not settings.flag("HOROVOD_CALIBRATE"):
        return settings
    transport = settings.text("HOROVOD_TRANSPORT")
    world = calibration.World.here(env.size, env.local_size, env.cross_size, transport)
    tuning, trouble = calibration.load(world)
    if trouble and LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) <= LOG_LEVELS.index("warning"):
        make_sink(0, settings.flag("HOROVOD_LOG_HIDE_TIME"))(LOG_LEVELS.index("warning"), trouble)
    return settings.with_values({"HOROVOD_TUNING": tuning})


def _start_alone(env: WorkerEnv, settings: Settings, dynamic: bool) -> tuple[Job, "Engine"]:
    peer = _describe(env, settings, [], dynamic, [], "", [])
    formed = Formed({}, [-1, *shared_memory.make_bells(1)])
    job = make_job(0, [env.hostname], dynamic, settings.flag("HOROVOD_ELASTIC"))
    try:
        return job, make_engine(make_plan(0, [peer]), [peer], formed, settings, env)
    except BaseException:
        formed.close()
        raise


def _describe(
    env: WorkerEnv,
    settings: Settings,
    process_sets: list[list[int]],
    dynamic: bool,
    endpoints: list[Endpoint],
    unix_name: str,
    ciphers: list[str],
) -> Peer:
    return Peer(
        version=__version__,
        world_rank=env.rank,
        hostname=env.hostname,
        machine=machine_identity(shared=settings.text("HOROVOD_TRANSPORT") != "tcp"),
        pid=os.getpid(),
        network=network_identity(),
        endpoints=endpoints,
        unix_name=unix_name,
        cpus=sorted(os.sched_getaffinity(0)),
        shared=settings.shared(),
        dynamic=dynamic,
        process_sets=process_sets,
        ciphers=ciphers,
    )


class _Joining:
    """One attempt to join a job of several ranks."""

    def __init__(
        self, env: WorkerEnv, settings: Settings, members: list[int] | None, sets: list[list[int]], dynamic: bool
    ) -> None:
        self._env = env
        self._settings = settings
        self._world = members is None or len(members) == env.size
        self._members = members or list(range(env.size))
        self._me = self._members.index(env.rank)
        self._sets = sets
        self._dynamic = dynamic
        self._patience = settings.number("HOROVOD_START_TIMEOUT")
        self._ciphers = cipher.available()
        self._meeting = find_store(env, settings, [] if self._world else self._members)
        self._key, self._host, self._port = self._meeting.key, self._meeting.address, self._meeting.port

    def run(self) -> tuple[Job, "Engine"]:
        listeners = self._listen()
        try:
            with StoreClient(self._key, self._host, self._port) as store:
                mine = self._describe_self(listeners)
                met = self._meet(store, mine)
                return self._form_and_confirm(store, listeners, mine, met)
        finally:
            listeners.close()

    def _listen(self) -> Listeners:
        """Raises ValueError naming HOROVOD_GLOO_IFACE or HOROVOD_PORT_RANGE when they do not fit."""
        ports = parse_ports(self._settings.text("HOROVOD_PORT_RANGE"))
        interface = self._settings.text("HOROVOD_GLOO_IFACE")
        alone = self._env.local_size == self._env.size
        try:
            found = scan()
        except OSError as error:
            if interface or not alone:
                raise ValueError(f"the network interfaces of this host cannot be listed: {error.strerror}") from None
            found = []  # shared memory needs none
        places = to_listen(found, interface, alone)
        # A peer comes for control and for data, and to addresses that it tries side by side.
        return Listeners(places, 4 * len(self._members) + 64, ports)

    def _describe_self(self, listeners: Listeners) -> Peer:
        return _describe(
            self._env,
            self._settings,
            self._sets,
            self._dynamic,
            listeners.endpoints,
            listeners.unix_name,
            list(self._ciphers),
        )

    def _meet(self, store: StoreClient, mine: Peer) -> Met:
        """Waits for all ranks. Raises ValueError naming those that do not come."""
        group = "init" if self._world else "init " + ",".join(map(str, self._members))
        if len(group) > 512:  # the store's limit of names
            group = "init " + derive_key(self._key, group).hex()
        try:
            met = store.exchange_by_node(
                group,
                self._me,
                len(self._members),
                msgspec.msgpack.encode(mine),
                derive_key(self._key, "node " + "\0".join(node_of(mine))).hex(),  # names may be of any length
                self._patience,
            )
        except StoreTimeout as error:
            if not error.missing and not error.gave_up:
                raise ValueError(f"init: {error}") from None
            absent, gave_up = ([self._members[int(rank)] for rank in some] for some in (error.missing, error.gave_up))
            who = self._env.rank, self._env.hostname
            raise waited_in_vain(who, len(self._members), self._patience, absent, gave_up) from None
        except StoreError as error:
            raise ValueError(f"init: {error}") from None
        self._meeting.formed()
        return met

    def _gather(self, store: StoreClient, listeners: Listeners, mine: Peer, met: Met, formed: Formed) -> list[Peer]:
        """Everybody's records; the links inside of the node over which they came go to ``formed``.

        Raises ValueError, on all ranks alike, when records do not fit together, as well as when they do not come.
        """
        seconds = self._settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
        key = derive_key(self._key, "links")
        try:
            values, formed.links = records.spread(
                met, self._me, mine, key, listeners, seconds, lambda: _check_others(store, met.round)
            )
        except BaseException as error:
            text = self._tell(store, met.round, error)
            if isinstance(error, Exception):
                self._await_others(store, met.round, text)
            if isinstance(error, (LinkError, OSError, StoreError)):
                raise ValueError(f"init: {text}") from error
            raise
        peers = decode_peers(values)
        check_agreement(peers)
        return peers

    def _form_and_confirm(self, store: StoreClient, listeners: Listeners, mine: Peer, met: Met) -> tuple[Job, "Engine"]:
        formed = Formed({}, [])
        epoch = met.round
        try:
            peers = self._gather(store, listeners, mine, met, formed)
            settings = self._settings.with_values(agree([peer.shared for peer in peers]))
            plan = make_plan(self._me, peers)
            self._env = self._placed(peers)
            formed.cipher = self._cipher(plan, peers, settings)
        except BaseException:
            formed.close()
            raise
        engine = None
        try:
            descriptors.make_room(_descriptors(plan))
            seconds = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
            encrypted = (CONTROL, DATA) if settings.flag("HOROVOD_ENCRYPT_DATA") else (CONTROL,)
            former = Former(
                plan,
                peers,
                derive_key(self._key, "links"),
                epoch,
                listeners,
                formed.cipher,
                encrypted,
                kinds=(CONTROL, DATA),
            )
            formed.links.update(former.run(seconds, lambda: _check_others(store, epoch)))
            formed.sessions = former.sessions
            for (kind, _), sock in formed.links.items():
                if kind == DATA:
                    congestion.apply(sock, settings.text("HOROVOD_TCP_CONGESTION"))
                if kind != NODE:
                    keepalive.apply(sock, settings.number("HOROVOD_HEARTBEAT_TIMEOUT"), control=kind == CONTROL)
            listeners.close()
            formed.descriptors = _share_memory(plan, formed.links, settings, seconds)
            engine = make_engine(plan, peers, formed, settings, self._env)
            self._confirm(store, epoch, seconds)
        except BaseException as error:
            # Told before anything is closed: what the others then see break must not hide the cause.
            text = self._tell(store, epoch, error)
            formed.close()
            if engine is not None:
                engine.shutdown("init failed")
                engine = None  # the traceback would keep it, and its own doorbell, alive
            if isinstance(error, Exception) and not isinstance(error, _ToldError):  # Ctrl-C does not wait
                self._await_others(store, epoch, text)
            if isinstance(error, (LinkError, OSError, StoreError)):
                # A LinkError says the same: two tracebacks would only hide it.
                raise ValueError(f"init: {text}") from (None if isinstance(error, LinkError) else error)
            raise
        job = replace(self._job(peers), check_steps=settings.integer("HOROVOD_CHECK_IN_SYNC_STEPS"))
        if formed.cipher is not None:
            # A user's key may serve several jobs, the name is random.
            job = replace(job, seals=Seals(derive_key(self._key, f"objects {epoch} {peers[0].unix_name}")))
        return job, engine

    def _cipher(self, plan: Plan, peers: list[Peer], settings: Settings) -> Cipher | None:
        """For connections between nodes, if there are any. Raises ValueError on all ranks alike."""
        if len(plan.leaders) == 1:
            return None
        labels = [label(rank, peer) for rank, peer in enumerate(peers)]
        name = cipher.agree(labels, [peer.ciphers for peer in peers], settings.text("HOROVOD_CIPHER"))
        return Cipher(name, self._ciphers[name])

    def _confirm(self, store: StoreClient, epoch: int, seconds: float) -> None:
        try:
            _, errors = store.exchange(f"formed {epoch}", self._me, len(self._members), b"", seconds)
        except StoreTimeout as error:
            ranks = ", ".join(str(self._members[int(rank)]) for rank in (*error.missing, *error.gave_up)[:32])
            raise LinkError(f"waited {seconds:g} s for rank {ranks or '?'} to connect to its peers") from None
        for text in filter(None, errors):
            raise _ToldError(text.decode(errors="replace"))

    def _tell(self, store: StoreClient, epoch: int, error: BaseException) -> str:
        """Lets the others fail at once, not at their deadlines. Returns the job's first failure, ours or another's."""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"rank {self._env.rank} (host {self._env.hostname}, pid {os.getpid()}) could not join: {reason}"
        with contextlib.suppress(StoreError):
            return store.set_first(_failure(epoch), text.encode()).decode(errors="replace")
        return text

    def _await_others(self, store: StoreClient, epoch: int, text: str) -> None:
        """Some may be past looking for failures already and wait in _confirm."""
        with contextlib.suppress(StoreError):
            store.exchange(f"formed {epoch}", self._me, len(self._members), text.encode(), _CONFIRM_SECONDS)

    def _placed(self, peers: list[Peer]) -> WorkerEnv:
        """Other launchers do not tell all local and cross ranks; the hosts' names do."""
        if self._env.place is None:
            return self._env
        job = self._job(peers)
        return replace(
            self._env,
            local_rank=job.local_rank,
            local_size=job.local_size,
            cross_rank=job.cross_rank,
            cross_size=job.cross_size,
        )

    def _job(self, peers: list[Peer]) -> Job:
        elastic = self._settings.flag("HOROVOD_ELASTIC")
        job = make_job(self._me, [peer.hostname for peer in peers], self._dynamic, elastic)
        if not self._world or self._env.place is not None:
            return job
        env = self._env  # the launcher's word counts: it may order ranks of a host in its own way
        return Job(
            env.rank,
            env.size,
            env.local_rank,
            env.local_size,
            env.cross_rank,
            env.cross_size,
            job.homogeneous,
            self._dynamic,
            elastic,
        )


def _descriptors(plan: Plan) -> int:
    """How many this rank needs at most: links, doorbells, connections that are tried twice, strangers, and some more
    for libraries and the program."""
    return 3 * len(plan.remote) + 2 * (len(plan.local) + len(plan.leaders)) + 128


def _failure(epoch: int) -> str:
    return f"failure {epoch}"


def _check_others(store: StoreClient, epoch: int) -> None:
    text = store.find(_failure(epoch))
    if text is not None:
        raise LinkError(text.decode(errors="replace"))


def _share_memory(plan: Plan, links: dict[Link, socket.socket], settings: Settings, seconds: float) -> list[int]:
    """[segment or -1, doorbell of each local rank]."""
    from horovod import _core

    count = len(plan.local)
    if count == 1:
        return [-1, *shared_memory.make_bells(1)]
    if not plan.leads:
        return shared_memory.receive(links[NODE, plan.leader], count + 1, seconds)
    arena, staging = settings.integer("HOROVOD_ARENA_BYTES"), settings.integer("HOROVOD_STAGING_BYTES")
    ring = settings.integer("HOROVOD_RING_BYTES")

    def make(bytes_each: int) -> list[int]:
        whole = _core.segment_bytes(count, staging, ring, shared_memory.arena_bytes(bytes_each, count))
        try:
            return shared_memory.make(whole, count)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            if bytes_each == -1:  # nobody has asked for that much
                return make(0)
            raise OSError(
                error.errno,
                f"{whole} bytes of shared memory for {count} ranks are refused: {error.strerror}; they follow from "
                f"HOROVOD_ARENA_BYTES, which is {arena}, and HOROVOD_STAGING_BYTES, which is {staging}: accepted is "
                "what memory and the limit of file sizes (ulimit -f) allow",
            ) from None

    made = make(arena)
    try:
        for rank in plan.local_children:
            shared_memory.send(links[NODE, rank], made, seconds)
    except OSError:
        shared_memory.close(made)
        raise
    return made
