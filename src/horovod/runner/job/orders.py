"""Messages that tell the agents of a job to start workers.

In a fixed-size job, a message starts all ranks of a host. In an elastic job, a message starts one worker.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from horovod.common.contract.kernel import make_room
from horovod.common.contract.worker_env import TORCH_PLACE, WorkerEnv
from horovod.runner.agent.messages import CHUNK, Payload, Request, StartJob, StartWorker, Worker
from horovod.runner.base import linux
from horovod.runner.base.job_result import LaunchError
from horovod.runner.job import terminal
from horovod.runner.plan import environment, hosts
from horovod.runner.plan.hosts import Slot, common_addresses, common_interfaces
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from horovod.runner.remote import ssh
from horovod.runner.remote.connections import Agent
from horovod.runner.remote.fleet import Fleet

# Difference in seconds between a host's clock and the launcher's above which the launcher warns
CLOCK_TOLERANCE = 30.0


def make_fleet(settings: LaunchSettings, environ: Mapping[str, str]) -> Fleet:
    """Create the agents for all hosts of the job without starting them.

    Raises:
        LaunchError: If the ssh identity file cannot be read. ssh itself would ignore a missing file.
    """
    remote = remote_of(settings, environ)
    slots: dict[str, list[Slot]] = {}
    for slot in settings.slots:
        slots.setdefault(slot.hostname, []).append(slot)
    agents = [
        Agent(host, on_host, remote=not hosts.is_local(host), python=on_host[0].python)
        for host, on_host in slots.items()
    ]
    return Fleet(agents, remote, fanout=settings.ssh_fanout, silence=settings.heartbeat_timeout)


def remote_of(settings: LaunchSettings, environ: Mapping[str, str]) -> ssh.Remote:
    """Return the options for reaching other hosts. Raises LaunchError if the ssh identity file cannot be read."""
    key = settings.ssh_identity_file
    if key is not None and not os.access(os.path.expanduser(key), os.R_OK):
        raise LaunchError(f"--ssh-identity-file (-i) must be a file that can be read here, got {key!r}")
    job = settings.elastic.slurm_job if settings.elastic is not None else ""
    return ssh.Remote.of(environ, settings.ssh_port, settings.ssh_identity_file, settings.remote_python or "", job)


def store_connections(fleet: Fleet) -> int:
    """Return the maximum number of relayed connections to the store, and raise the limit on open files for them.

    The maximum allows for two connections per rank on other hosts, and some unauthenticated connections.

    Raises:
        LaunchError: If the hard limit of open files is too low.
    """
    count = 64 + sum(2 * len(agent.slots) for agent in fleet.agents if agent.remote)
    if any(agent.remote for agent in fleet.agents):
        try:
            make_room(2 * count + 4 * len(fleet.agents) + 64)
        except ValueError as error:
            raise LaunchError(str(error)) from None
    return count


class _JobOrders:
    """Base class with the message parts that elastic jobs and fixed-size jobs share.

    `here` is True if all workers are known to run on this machine.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        environ: Mapping[str, str],
        key: bytes,
        store: tuple[str, int],
        payload: bytes | None,
        here: bool,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._key = key
        self._store = store
        self._payload = payload or b""
        self._interface = loopback() if here else None

    def __repr__(self) -> str:  # The default `__repr__` would show the secret key.
        return f"{type(self).__name__}({self._settings.command})"

    def shared_environment(self, remote: bool) -> dict[str, str]:
        """Return the environment variables that all workers on a host share."""
        return environment.job_environment(
            self._environ,
            self._settings.variables,
            self._interface,
            allow=self._settings.env_allow,
            deny=self._settings.options.env_deny,
            remote=remote,
        )

    def _start_job(self, agent: Agent, slots: int, shared: Mapping[str, str], **more: Any) -> Iterator[Request]:
        """Yield the job's payload and the StartJob message for `slots` workers.

        `more` contains additional fields of StartJob.
        """
        for offset in range(0, len(self._payload), CHUNK):
            yield Payload(self._payload[offset : offset + CHUNK])
        assert agent.facts is not None
        own_place = self._settings.options.whole_environment
        threads = {} if own_place else {"OMP_NUM_THREADS": str(environment.omp_threads(agent.facts.cores, slots))}
        yield StartJob(
            command=[os.fsencode(word) for word in self._settings.command],
            directory=b"" if own_place else linux.working_directory(),
            environment=encode({**threads, **shared}),
            key=bytes(self._key),
            relay=agent.remote,
            own_environment=agent.remote,
            **msgspec.structs.asdict(self._settings.options),
            **more,
        )


class Orders(_JobOrders):
    """Builder of the messages to the agents of a fixed-size job. Create it once all agents have sent Hello.

    Args:
        settings: Job settings.
        environ: The launcher's environment variables.
        agents: All agents of the job.
        key: The job's secret key.
        store: Address of the store on this machine, as (host, port).
        payload: Contents of a file that all workers inherit.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        environ: Mapping[str, str],
        agents: Sequence[Agent],
        key: bytes,
        store: tuple[str, int],
        payload: bytes | None,
    ) -> None:
        here = not any(agent.remote for agent in agents)
        super().__init__(settings, environ, key, store, payload, here)
        self._agents = agents
        self._debugged = terminal.of_job(settings.debug_rank, settings.slots)
        facts = {} if here else {agent.host: agent.facts.interfaces for agent in agents if agent.facts is not None}
        self._interfaces = common_interfaces(facts) if facts else {}
        self._torch = (
            self._torch_arguments(here, common_addresses(facts) if facts else {}) if settings.torch_env else None
        )

    def messages(self, agent: Agent, *, stdin: bool, results: bool) -> Iterator[Request]:
        """Yield the messages to send to one agent, in order.

        Args:
            agent: Agent that has sent its Hello message.
            stdin: True if rank 0 reads the launcher's standard input.
            results: True if workers write result files.
        """
        slots = agent.slots
        shared = self.shared_environment(agent.remote)
        # Set the network interface for NCCL. Horovod's own connections need no setting, because they try all networks.
        if agent.host in self._interfaces:
            shared.setdefault("NCCL_SOCKET_IFNAME", self._interfaces[agent.host])
        yield from self._start_job(
            agent,
            slots[0].local_size,
            shared,
            workers=[Worker(slot.rank, encode(self._own_environment(slot))) for slot in slots],
            stdin_rank=0 if stdin and any(slot.rank == 0 for slot in slots) else -1,
            results=results,
            terminal_rank=self._debugged.rank if self._debugged is not None and self.gives_terminal else -1,
            terminal=os.fsencode(self._debugged.terminal) if self._debugged is not None else b"",
        )

    @property
    def gives_terminal(self) -> bool:
        """True if a rank uses the terminal of the launcher."""
        return self._debugged is not None and bool(self._debugged.terminal)

    def _own_environment(self, slot: Slot) -> dict[str, str]:
        others = self._debugged is not None and slot.rank != self._debugged.rank
        own = environment.worker_environment(slot, *self._store) | (terminal.OTHER_RANKS if others else {})
        return own | environment.torch_variables(slot, *self._torch) if self._torch else own

    def _torch_arguments(self, here: bool, addresses: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        first = next(agent for agent in self._agents if agent.slots[0].rank == 0)
        assert first.facts is not None
        address = environment.TORCH_LOOPBACK
        if not here:
            address = addresses.get(first.host) or (first.host if first.remote else first.facts.hostname)
        port = self._settings.torch_port or first.facts.free_port
        master = environment.torch_master(address, port, self.shared_environment(remote=False))
        return [slot.hostname for slot in self._settings.slots], master

    def remarks(self) -> list[str]:
        """Return warnings about the hosts. They do not prevent the job from starting."""
        remarks = [self._debugged.remark] if self._debugged is not None and self._debugged.remark else []
        for agent in self._agents:
            if abs(agent.clock_offset) > CLOCK_TOLERANCE:
                way = "ahead of" if agent.clock_offset > 0 else "behind"
                remarks.append(
                    f"warning: the clock of host {agent.host} is {abs(agent.clock_offset):.0f} s {way} this one's, so "
                    "times in logs and of files will not fit together; let NTP (chrony, systemd-timesyncd) set both"
                )
        return remarks


def loopback() -> str | None:
    """Return the name of the loopback interface, or None if this machine has none."""
    return "lo" if "lo" in (name for _, name in socket.if_nameindex()) else None


def encode(variables: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Encode environment variables as bytes for messages."""
    return [(os.fsencode(name), os.fsencode(value)) for name, value in variables.items()]


class ElasticOrders(_JobOrders):
    """Builder of the messages to the agents of an elastic job.

    Args:
        settings: Job settings.
        elastic: Settings for elastic jobs.
        environ: The launcher's environment variables.
        key: The job's secret key.
        store: Address of the store on this machine, as (host, port).
        payload: Contents of a file that all workers inherit.
        results: True if workers write result files.
        foreseen: Function that returns the expected slot of a worker, or None if it is unknown.
        machine_of: Function that returns the machine of a host, as in `Membership`.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        elastic: ElasticSettings,
        environ: Mapping[str, str],
        key: bytes,
        store: tuple[str, int],
        payload: bytes | None,
        results: bool,
        foreseen: Callable[[int], Slot | None] = lambda number: None,
        machine_of: Callable[[str], str] = lambda host: host,
    ) -> None:
        # All workers are known to run here only if the hosts are fixed. A discovery script can find others later.
        here = bool(elastic.hosts) and all(hosts.is_local(host.name) for host in elastic.hosts)
        super().__init__(settings, environ, key, store, payload, here)
        self._elastic = elastic
        self._results = results
        self._foreseen = foreseen
        self._machine_of = machine_of

    def prepare(self, agent: Agent, slots: int) -> Iterator[Request]:
        """Yield the messages to send to a host before its first worker starts.

        `slots` is the host's current number of slots.
        """
        shared = self.shared_environment(agent.remote)
        yield from self._start_job(agent, max(1, slots), shared, workers=[], results=self._results, lasting=True)

    def worker(self, number: int, host: str) -> StartWorker:
        """Return the message that starts a worker.

        The worker's environment contains the expected rank and sizes, for programs that read them before `hvd.init()`.
        The final values are only known in `hvd.init()`.
        """
        address, port = self._store
        env = WorkerEnv(hostname=self._machine_of(host), rendezvous_addr=address, rendezvous_port=port, worker=number)
        slot = self._foreseen(number)
        if slot is None:
            return StartWorker(Worker(number, encode(without_place(env.to_environ()))))
        place = {name: value for name, value in asdict(slot).items() if name.endswith(("rank", "size"))}
        return StartWorker(Worker(number, encode(replace(env, **place).to_environ())))

    def shared_environment(self, remote: bool) -> dict[str, str]:
        shared = super().shared_environment(remote)
        elastic = {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_TIMEOUT": f"{self._elastic.timeout:g}"}
        return without_place(shared) | elastic


def without_place(variables: Mapping[str, str]) -> dict[str, str]:
    """Remove ranks and sizes from the variables, because each epoch assigns new ones.

    The variables can contain a rank if the launcher is itself a rank of another job.
    """
    return {name: value for name, value in variables.items() if name not in _PLACE}


_PLACE = (
    *(f"HOROVOD_{of}{what}" for of in ("", "LOCAL_", "CROSS_") for what in ("RANK", "SIZE")),
    *TORCH_PLACE,  # torch.distributed's rank variables, which would be wrong once ranks change between epochs
)
