"""Orders to the agents of an elastic job: once for each host, then for each worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace

from horovod.common.contract.worker_env import TORCH_PLACE, WorkerEnv
from horovod.runner.base import linux
from horovod.runner.job.orders import encode, loopback
from horovod.runner.plan import environment, hosts
from horovod.runner.plan.hosts import Slot
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from horovod.runner.protocol.messages import CHUNK, Payload, Request, StartJob, StartWorker, Worker
from horovod.runner.remote.agents import Agent


class ElasticOrders:
    """Messages to the agents of an elastic job.

    Args:
        settings: Settings of the job.
        elastic: Its elastic settings.
        environ: Environment variables of the launcher.
        key: Key of the job.
        store: Address of the store on this machine.
        payload: Contents of a file that all workers inherit.
        results: True if workers leave result files.
        foreseen: Returns the ranks and sizes that a worker is expected to get, None if unknown.
        machine_of: Returns the machine of a host, as for `Membership`.
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
        self._settings = settings
        self._elastic = elastic
        self._environ = environ
        self._key = key
        self._store = store
        self._payload = payload or b""
        self._results = results
        self._foreseen = foreseen
        self._machine_of = machine_of
        # Discovered hosts may change, so only fixed hosts can be known to be this machine.
        fixed_here = bool(elastic.hosts) and all(hosts.is_local(host.name) for host in elastic.hosts)
        self._interface = loopback() if fixed_here else None

    def __repr__(self) -> str:  # must not show the key
        return f"ElasticOrders({self._settings.command})"

    def prepare(self, agent: Agent, slots: int) -> Iterator[Request]:
        """Yield the messages to send to a host before its first worker. `slots` is its current number of slots."""
        for offset in range(0, len(self._payload), CHUNK):
            yield Payload(self._payload[offset : offset + CHUNK])
        assert agent.facts is not None
        threads = str(environment.omp_threads(agent.facts.cores, max(1, slots)))
        local = {} if self._settings.at_home else {"OMP_NUM_THREADS": threads}
        yield StartJob(
            command=[os.fsencode(word) for word in self._settings.command],
            directory=b"" if self._settings.at_home else linux.working_directory(),
            environment=encode({**local, **self.shared_environment(agent.remote)}),
            workers=[],
            key=bytes(self._key),
            results=self._results,
            relay=agent.remote,
            own_environment=agent.remote,
            whole_environment=self._settings.at_home,
            deny=list(self._settings.env_deny),
            own_python=self._settings.own_python,
            lasting=True,
        )

    def worker(self, number: int, host: str) -> StartWorker:
        """Return the order to start one worker.

        Its environment contains the expected ranks and sizes, for programs that read them before `hvd.init()`, which
        tells the final ones.
        """
        address, port = self._store
        env = WorkerEnv(hostname=self._machine_of(host), rendezvous_addr=address, rendezvous_port=port, worker=number)
        slot = self._foreseen(number)
        if slot is None:
            return StartWorker(Worker(number, encode(without_place(env.to_environ()))))
        place = {name: value for name, value in asdict(slot).items() if name.endswith(("rank", "size"))}
        return StartWorker(Worker(number, encode(replace(env, **place).to_environ())))

    def shared_environment(self, remote: bool) -> dict[str, str]:
        """Return the variables that all workers of a host share."""
        shared = environment.job_environment(
            self._environ,
            self._settings.variables,
            self._interface,
            allow=self._settings.env_allow,
            deny=self._settings.env_deny,
            remote=remote,
        )
        told = {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_TIMEOUT": f"{self._elastic.timeout:g}"}
        return without_place(shared) | told


def without_place(variables: Mapping[str, str]) -> dict[str, str]:
    """Remove ranks and sizes, which each epoch defines; the launcher may itself be a rank of another job."""
    return {name: value for name, value in variables.items() if name not in _PLACE}


_PLACE = (
    *(f"HOROVOD_{of}{what}" for of in ("", "LOCAL_", "CROSS_") for what in ("RANK", "SIZE")),
    *TORCH_PLACE,  # torch.distributed would not notice that they change
)
