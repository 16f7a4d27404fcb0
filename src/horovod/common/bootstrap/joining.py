"""One rank's attempt to join a multi-rank job, in stages.

The ranks meet in the store, exchange records, connect to each other, and start their engines. In the end, ``init``
succeeds on all ranks or raises an error on all of them. The table shows how other ranks notice a failure in each stage.

    stage                                                       how other ranks see a failure
    listen    open sockets on which peers can connect           the store lists this rank as missing
    meet      meet all ranks in the store, which starts a
              new epoch
    ----------------------------------------------------------------------------------------------------------
    gather    get all ranks' records (``records``)              reported
    agree     compute settings, process sets and cipher from    not reported, because it fails on all ranks
              the records
    connect   connect to peers (``mesh``)                       reported
    share     share the node's memory and doorbells             reported
    start     start the engine, which takes all resources       reported
    confirm   make init succeed on all ranks or on none         reported, or received from another rank

Failures below the line end in ``_give_up``. This method first reports the failure to the other ranks (``failures``).
Closing connections first would hide the cause from them. Then it closes all connections, waits for ranks that no longer
check for failures, and raises an error.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from horovod._version import __version__
from horovod.common.bootstrap import engine_start, records
from horovod.common.bootstrap.engine_start import Formed, make_engine
from horovod.common.bootstrap.errors import Failures, KnownFailureError, LinkError, NotFormedError, start_timeout_error
from horovod.common.bootstrap.mesh import MeshBuilder
from horovod.common.bootstrap.peers import (
    CONTROL,
    DATA,
    NODE,
    Peer,
    Plan,
    check_agreement,
    decode_peers,
    label,
    make_job,
    make_plan,
    node_of,
)
from horovod.common.communicators import Sets, SetSpec
from horovod.common.contract import kernel
from horovod.common.contract.settings import Settings, agree
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.frontends import Job
from horovod.common.key_exchange.meeting import find_store
from horovod.common.network import connecting
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import Endpoint, machine_identity, network_identity, parse_ports, scan, to_listen
from horovod.common.security import cipher
from horovod.common.security.auth import derive_key
from horovod.common.security.cipher import Cipher
from horovod.common.security.object_seal import Seals
from horovod.common.store.client import ExchangeResult, StoreClient, StoreError, StoreTimeout

if TYPE_CHECKING:
    from horovod._core import Engine


class Joining:
    """This rank's attempt to join a job. Call ``run`` exactly once."""

    def __init__(
        self, env: WorkerEnv, settings: Settings, members: list[int] | None, sets: list[SetSpec], dynamic: bool
    ) -> None:
        """Create an attempt to join a job.

        ``members[i]`` is the world rank of the job's rank i. None means that all ranks of the world form the job.
        """
        self._env = env
        self._settings = settings
        self._world = members is None
        self._members = members or list(range(env.size))
        self._me = self._members.index(env.rank)
        self._sets = sets
        self._dynamic = dynamic
        self._patience = settings.number("HOROVOD_START_TIMEOUT")
        self._ciphers = cipher.available()
        self._meeting = find_store(env, settings, [] if self._world else self._members)
        self._key, self._host, self._port = self._meeting.key, self._meeting.address, self._meeting.port
        self._formed = Formed({}, [])
        self._engine: Engine | None = None
        self._agreed: tuple[Sets, ...] = ()
        # True in stages in which every rank detects the same errors, so they need not be reported to other ranks.
        self._reported = False

    def run(self) -> tuple[Job, "Engine"]:
        """Join the job and start its engine.

        Returns:
            The job and its engine.

        Raises:
            ValueError: If the job cannot be formed. The message names the problem or the missing ranks. All descriptors
                are closed.
        """
        listeners = self._listen()
        try:
            with StoreClient(self._key, self._host, self._port) as store:
                mine = self._describe_self(listeners)
                met = self._meet(store, mine)
                failures = Failures(store, met.round, self._me, self._members, self._env.hostname)
                try:
                    return self._form(listeners, mine, met, failures)
                except BaseException as error:
                    text = self._give_up(error, failures)
                    if isinstance(error, (LinkError, OSError, StoreError)):
                        kind = ValueError if _is_own(error) else NotFormedError
                        # Do not chain a LinkError, because its traceback would repeat the message.
                        raise kind(f"init: {text}") from (None if isinstance(error, LinkError) else error)
                    raise
        finally:
            listeners.close()

    def _form(self, listeners: Listeners, own: Peer, met: ExchangeResult, failures: Failures) -> tuple[Job, "Engine"]:
        formed, epoch = self._formed, met.round
        values = self._gather(listeners, own, met, failures)
        self._reported = True
        peers = decode_peers(values)
        self._agreed = check_agreement(peers)
        self._settings = self._settings.with_values(agree([peer.shared for peer in peers]))
        plan = make_plan(self._me, peers)
        self._env = self._placed(peers)
        formed.cipher = self._cipher(plan, peers)
        self._reported = False
        seconds = self._settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
        self._connect(listeners, plan, peers, epoch, failures)
        formed.descriptors = engine_start.provide(plan, formed.links, self._settings, seconds)
        self._engine = make_engine(plan, peers, formed, self._settings, self._env)
        failures.confirm(seconds)
        return self._describe_job(peers, epoch), self._engine

    def _give_up(self, error: BaseException, failures: Failures) -> str:
        """Report the failure and release all resources. Return the first failure that any rank reported."""
        reported = self._reported or isinstance(error, KnownFailureError)
        text = str(error) if reported else failures.report(error)
        self._formed.close()
        if self._engine is not None:
            self._engine.shutdown("init failed")
            # A traceback can keep this object alive. Drop the engine, to release its memory and file descriptors.
            self._engine = None
        # Send the failure to ranks that already wait for this rank in the final exchange of init(). Skip this after
        # Ctrl-C, so that the process exits immediately, and in an elastic job, whose ranks rejoin through the launcher.
        if isinstance(error, Exception) and not reported and not self._env.epoch:
            failures.await_peers(text)
        return text

    def _listen(self) -> Listeners:
        """Open the sockets on which this rank accepts connections from its peers.

        Raises:
            ValueError: If HOROVOD_GLOO_IFACE or HOROVOD_PORT_RANGE does not match this host. The message names the
                setting.
        """
        ports = parse_ports(self._settings.text("HOROVOD_PORT_RANGE"))
        interface = self._settings.text("HOROVOD_GLOO_IFACE")
        alone = self._env.local_size == self._env.size
        try:
            found = scan()
        except OSError as error:
            if interface or not alone:
                raise ValueError(f"the network interfaces of this host cannot be listed: {error.strerror}") from None
            found = []
        places = to_listen(found, interface, alone)
        # Allow many pending connections: each peer opens two (control and data) and tries several addresses at once.
        return Listeners(places, 4 * len(self._members) + 64, ports)

    def _describe_self(self, listeners: Listeners) -> Peer:
        return describe(
            self._env,
            self._settings,
            self._sets,
            self._dynamic,
            listeners.endpoints,
            listeners.unix_name,
            list(self._ciphers),
        )

    def _meet(self, store: StoreClient, own: Peer) -> ExchangeResult:
        """Wait until all ranks have called ``init``. On a timeout, raise ValueError naming the missing ranks."""
        group = (
            f"init e{self._env.epoch}"
            if self._env.epoch
            else "init"
            if self._world
            else "init " + ",".join(map(str, self._members))
        )
        if len(group) > 512:  # hash long names, because the store limits names to 512 characters
            group = "init " + derive_key(self._key, group).hex()
        try:
            met = store.exchange_by_node(
                group,
                self._me,
                len(self._members),
                msgspec.msgpack.encode(own),
                # Hash the host and machine names that identify this node, because they can be long.
                derive_key(self._key, "node " + "\0".join(node_of(own))).hex(),
                self._patience,
            )
        except StoreTimeout as error:
            if not error.missing and not error.gave_up:
                raise NotFormedError(f"init: {error}") from None
            absent, gave_up = ([self._members[int(rank)] for rank in some] for some in (error.missing, error.gave_up))
            who = self._env.rank, self._env.hostname
            alone = self._env.place.alone if self._env.place is not None else ""
            raise start_timeout_error(who, len(self._members), self._patience, absent, gave_up, alone) from None
        except StoreError as error:
            raise NotFormedError(f"init: {error}") from None
        self._meeting.formed()
        return met

    def _gather(self, listeners: Listeners, own: Peer, met: ExchangeResult, failures: Failures) -> list[bytes]:
        """Collect the ``Peer`` records of all ranks, in encoded form. Links within the node stay open for the job."""
        seconds = self._settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
        key = derive_key(self._key, "links")
        values, self._formed.links = records.spread(met, self._me, own, key, listeners, seconds, failures.check)
        return values

    def _cipher(self, plan: Plan, peers: list[Peer]) -> Cipher | None:
        """Return the cipher for connections between nodes, or None for a single-node job.

        Raises ValueError on all ranks if they have no common cipher.
        """
        if len(plan.leaders) == 1:
            return None
        labels = [label(rank, peer) for rank, peer in enumerate(peers)]
        name = cipher.agree(labels, [peer.ciphers for peer in peers], self._settings.text("HOROVOD_CIPHER"))
        return Cipher(name, self._ciphers[name])

    def _connect(self, listeners: Listeners, plan: Plan, peers: list[Peer], epoch: int, failures: Failures) -> None:
        """Establish the connections to other nodes, and stop listening."""
        settings = self._settings
        kernel.make_room(_descriptors(plan))
        encrypted = (CONTROL, DATA) if settings.flag("HOROVOD_ENCRYPT_DATA") else (CONTROL,)
        key, formed = derive_key(self._key, "links"), self._formed
        mesh = MeshBuilder(plan, peers, key, epoch, listeners, formed.cipher, encrypted, kinds=(CONTROL, DATA))
        formed.links.update(mesh.run(settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS"), failures.check))
        formed.sessions = mesh.sessions
        # Read rank 0's address before the engine takes ownership of the socket.
        if (DATA, 0) in formed.links:
            formed.first_address = str(formed.links[DATA, 0].getpeername()[0])
        for (kind, _), sock in formed.links.items():
            if kind == DATA:
                connecting.set_congestion(sock, settings.text("HOROVOD_TCP_CONGESTION"))
            if kind != NODE:
                connecting.set_keepalive(sock, settings.number("HOROVOD_HEARTBEAT_TIMEOUT"), control=kind == CONTROL)
        listeners.close()

    def _describe_job(self, peers: list[Peer], epoch: int) -> Job:
        job = replace(
            self._job(peers),
            requested_sets=self._agreed,
            check_steps=self._settings.integer("HOROVOD_CHECK_IN_SYNC_STEPS"),
            waits_for_devices=not self._settings.flag("HOROVOD_ENABLE_ASYNC_COMPLETION"),
            first_address=self._formed.first_address,
        )
        if self._formed.cipher is None:
            return job
        # Objects sent between ranks are sealed with a key. Several jobs can share a user-supplied key, so a random name
        # is included when the sealing key is derived.
        return replace(job, seals=Seals(derive_key(self._key, f"objects {epoch} {peers[0].unix_name}")))

    def _placed(self, peers: list[Peer]) -> WorkerEnv:
        """Return the environment with local and cross ranks computed from host names.

        Launchers other than horovodrun might not provide these ranks.
        """
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
        job = make_job(
            self._me, [peer.hostname for peer in peers], [peer.pid for peer in peers], self._dynamic, elastic
        )
        if not self._world or self._env.place is not None:
            return job
        env = self._env  # local and cross ranks are chosen by the launcher, so take them from its variables
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
            hosts=job.hosts,
            pids=job.pids,
        )


def describe(
    env: WorkerEnv,
    settings: Settings,
    process_sets: list[SetSpec],
    dynamic: bool,
    endpoints: list[Endpoint],
    unix_name: str,
    ciphers: list[str],
) -> Peer:
    """Create this rank's ``Peer`` record for the other ranks."""
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


def _is_own(error: Exception) -> bool:
    """Return True if the error is local, such as too many open files, or False if a lost peer caused it."""
    return isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError))


def _descriptors(plan: Plan) -> int:
    """Return an upper bound for the number of file descriptors that this rank needs.

    The bound covers links, eventfds that wake local ranks, repeated connection attempts, unauthenticated connections,
    and the descriptors that libraries and the program open.
    """
    return 3 * len(plan.remote) + 2 * (len(plan.local) + len(plan.leaders)) + 128
