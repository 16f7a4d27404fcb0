"""Driver's side of a job whose workers are external processes: the job's key, its store and three ports.

The ports are for the key, the liveness connections and the heartbeats.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from horovod.common.contract.descriptors import make_room
from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import WorkerEnv, make_key
from horovod.common.key_exchange.curve_exchange import CurveKeyServer
from horovod.common.store.membership import MembershipControl
from horovod.common.store.server import StoreServer
from horovod.common.store.sockets import descriptors_for, listen
from horovod.runner.external_workers.assignment import Assignment, ExternalWorker
from horovod.runner.external_workers.liveness import LivenessServer
from horovod.runner.job.orders import without_place
from horovod.runner.plan import environment
from horovod.runner.plan.hosts import Slot

OWN = "HOROVOD_"
"""Prefix of the driver's variables that workers get."""

_TIMEOUT = "HOROVOD_HEARTBEAT_TIMEOUT"
_EACH = 4  # connections per worker: liveness, heartbeats, and up to two to the store


class ExternalWorkers:
    """Servers of a job, which run in threads until ``close`` is called.

    Only one thread at a time can use this class.
    """

    def __init__(
        self,
        address: str,
        gone: Callable[[int, str], None],
        front: MembershipControl | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Create the store and open the ports.

        Args:
            address: Address of this host that the workers can reach.
            gone: Function to call when a worker has ended or left. It is called in another thread, with the worker's
                number and a text. The text is empty, or describes for how long the worker has been silent.
            front: Queue of the workers' requests. Only for elastic jobs.
            variables: Environment variables for all workers. HOROVOD_HEARTBEAT_TIMEOUT also applies to the driver.

        Raises:
            ValueError: The address does not belong to this host, a variable is invalid, or the limit of open files is
                too low.
        """
        self._address = address
        told = {_TIMEOUT: (variables or {}).get(_TIMEOUT, "")}
        self._silence = Settings.from_environ(told).number(_TIMEOUT)
        self._known: dict[int, bytes] = {}
        make_room(descriptors_for(0))
        key = make_key()
        with contextlib.ExitStack() as at_failure:
            try:
                store = at_failure.enter_context(StoreServer(key, address, front=front))
                door = listen(address)
            except ValueError as error:
                raise ValueError(
                    f"workers are to reach this driver at {address}, which is no address of its host ({error}); name "
                    "an interface of all hosts by nics"
                ) from None
            at_failure.callback(door.close)
            self._key_port = door.getsockname()[1]
            key_server = CurveKeyServer([door], self._known.get, key, store.address[1])
            at_failure.callback(key_server.close)
            liveness = listen(address)
            at_failure.callback(liveness.close)
            self._liveness_port = liveness.getsockname()[1]
            heartbeats = listen(address)
            at_failure.callback(heartbeats.close)
            self._heartbeat_port = heartbeats.getsockname()[1]
            server = LivenessServer(liveness, heartbeats, key, self._silence, gone)
            at_failure.pop_all()
        self._public = key_server.public
        self._liveness = server
        self._open = (server, key_server, store)

    def assign(self, number: int, worker: ExternalWorker, variables: Mapping[str, str], seconds: float) -> Assignment:
        """Return the data that a worker needs to join the job.

        Args:
            number: Number of the worker.
            worker: Description of the worker, created by the worker itself.
            variables: Additional environment variables of the worker. See ``of_slot`` and ``of_member``.
            seconds: Time limit for joining, in seconds.

        Raises:
            ValueError: The limit of open files is too low for all workers.
        """
        self._known[number] = worker.public
        # Try to reserve descriptors for the connections of all workers. Require them only for workers that have not
        # connected.
        coming = max(1, len(self._known) - self._liveness.there)
        make_room(descriptors_for(_EACH * len(self._known)), at_least=descriptors_for(_EACH * coming))
        where = self._address, self._key_port, self._liveness_port, self._heartbeat_port
        return Assignment(number, *where, self._public, dict(variables), seconds, self._silence)

    def forget(self, number: int) -> None:
        """Refuse further connections of this worker."""
        self._known.pop(number, None)

    def close(self) -> None:
        """Close all servers, which ends the workers that are still connected. Further calls have no effect."""
        for one in self._open:
            one.close()


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's variables to pass to workers.

    If the driver is a rank itself, its own rank's variables are omitted.
    """
    own = {name: value for name, value in environ.items() if name.startswith(OWN)}
    return environment.passed_on(without_place(own))


def of_slot(slot: Slot) -> dict[str, str]:
    """Return the environment variables of a worker in a job of fixed size."""
    place = asdict(slot)
    del place["python"]
    return WorkerEnv(**place).to_environ()


def of_torch(slot: Slot, slots: Sequence[Slot], first: ExternalWorker, shared: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker for torch.distributed, in a job of fixed size.

    The result is empty if the user has disabled them.

    Args:
        slot: Slot of the worker.
        slots: Slots of all workers in rank order. Their host names begin with an address.
        first: Description of the worker with rank 0.
        shared: Environment variables of all workers.
    """
    settings = Settings.from_environ(shared)
    if not settings.flag("HOROVOD_TORCH_DISTRIBUTED_ENV"):
        return {}
    address = slots[0].hostname.partition("-")[0]
    port = settings.integer("HOROVOD_TORCH_DISTRIBUTED_PORT") or first.free_port
    master = environment.torch_master(address, port, shared)
    return environment.torch_variables(slot, [each.hostname for each in slots], master)


def of_member(number: int, host: str, timeout: float) -> dict[str, str]:
    """Return the environment variables of a worker in an elastic job.

    The variables contain no ranks, because each epoch assigns new ranks.

    Args:
        number: Number of the worker.
        host: Host of the worker.
        timeout: Elastic timeout of the job, in seconds.
    """
    made = WorkerEnv(hostname=host, worker=number).to_environ()
    told = {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_TIMEOUT": f"{timeout:g}"}
    return without_place(made) | told
