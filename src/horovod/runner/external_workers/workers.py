"""Driver side of a job whose workers are external processes.

`ExternalWorkers` has the job's key, its store, and three listening ports, which serve the key, the liveness connections
and the heartbeats. `ExternalElasticJob` is the state of an elastic job. It takes events, and starts and ends processes
through `ProcessControl`; `elastic.membership` decides which workers are members.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from horovod.common.contract.kernel import make_room
from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import WorkerEnv, make_key
from horovod.common.key_exchange.curve_exchange import CurveKeyServer
from horovod.common.store.membership import MembershipControl
from horovod.common.store.server import StoreServer
from horovod.common.store.sockets import descriptors_for, listen
from horovod.runner.elastic.actions import Abandon, Action, End, Form, Kill, Show, Spawn, Standstill
from horovod.runner.elastic.limits import Blacklist, Limits, Newcomers
from horovod.runner.elastic.membership import Membership
from horovod.runner.elastic.workers import MachineOf
from horovod.runner.external_workers.assignment import Assignment, ExternalWorker
from horovod.runner.external_workers.liveness import LivenessServer
from horovod.runner.job.membership_server import MembershipServer, Roster
from horovod.runner.job.orders import without_place
from horovod.runner.plan import environment
from horovod.runner.plan.hosts import Slot

OWN = "HOROVOD_"
"""Prefix of the driver's variables that workers get."""

_TIMEOUT = "HOROVOD_HEARTBEAT_TIMEOUT"
_EACH = 4  # Number of connections per worker: one liveness, one heartbeat, and up to two store connections


class ExternalWorkers:
    """The servers of a job, which run in threads until ``close`` is called.

    Not thread-safe: only one thread at a time may call the methods.
    """

    def __init__(
        self,
        address: str,
        on_exit: Callable[[int, str], None],
        control: MembershipControl | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Create the store and open the ports.

        Args:
            address: Address of this host that the workers can reach.
            on_exit: Function to call when a worker has exited or left. It is called in another thread, with the
                worker's number and a message, which is empty or says for how long the worker has been silent.
            control: Queue of the workers' requests. Only for elastic jobs.
            variables: Environment variables for all workers. HOROVOD_HEARTBEAT_TIMEOUT also applies to the driver.

        Raises:
            ValueError: If the address does not belong to this host, a variable is invalid, or the limit of open files
                is too low.
        """
        self._address = address
        variable = {_TIMEOUT: (variables or {}).get(_TIMEOUT, "")}
        self._silence = Settings.from_environ(variable).number(_TIMEOUT)
        self._registered: dict[int, bytes] = {}
        make_room(descriptors_for(0))
        key = make_key()
        with contextlib.ExitStack() as at_failure:
            try:
                store = at_failure.enter_context(StoreServer(key, address, control=control))
                listener = listen(address)
            except ValueError as error:
                raise ValueError(
                    f"workers are to reach this driver at {address}, which is no address of its host ({error}); name "
                    "an interface of all hosts by nics"
                ) from None
            at_failure.callback(listener.close)
            self._key_port = listener.getsockname()[1]
            key_server = CurveKeyServer([listener], self._registered.get, key, store.address[1])
            at_failure.callback(key_server.close)
            liveness = listen(address)
            at_failure.callback(liveness.close)
            self._liveness_port = liveness.getsockname()[1]
            heartbeats = listen(address)
            at_failure.callback(heartbeats.close)
            self._heartbeat_port = heartbeats.getsockname()[1]
            server = LivenessServer(liveness, heartbeats, key, self._silence, on_exit)
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
            ValueError: If the limit of open files is too low for all workers.
        """
        self._registered[number] = worker.public
        # Raise the open-file limit for all workers if possible. It must suffice for those that are not connected yet.
        coming = max(1, len(self._registered) - self._liveness.there)
        make_room(descriptors_for(_EACH * len(self._registered)), at_least=descriptors_for(_EACH * coming))
        where = self._address, self._key_port, self._liveness_port, self._heartbeat_port
        return Assignment(number, *where, self._public, dict(variables), seconds, self._silence)

    def forget(self, number: int) -> None:
        """Reject further connections from this worker."""
        self._registered.pop(number, None)

    def close(self) -> None:
        """Close all servers. Workers that are still connected then exit. Can be called repeatedly."""
        for one in self._open:
            one.close()


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's variables to pass to workers.

    If the driver is a rank itself, its own rank's variables are omitted.
    """
    own = {name: value for name, value in environ.items() if name.startswith(OWN)}
    return environment.passed_on(without_place(own))


def of_slot(slot: Slot) -> dict[str, str]:
    """Return the environment variables of a worker in a fixed-size job."""
    place = asdict(slot)
    del place["python"]
    return WorkerEnv(**place).to_environ()


def of_torch(slot: Slot, slots: Sequence[Slot], first: ExternalWorker, shared: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that torch.distributed needs in a worker of a fixed-size job.

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
    elastic = {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_TIMEOUT": f"{timeout:g}"}
    return without_place(made) | elastic


class ProcessControl(Protocol):
    """Interface to the system that starts and stops worker processes. No method blocks."""

    def start(self, number: int, host: str) -> None:
        """Start a process for a worker. The caller must call `ExternalElasticJob.exited` when this process exits."""

    def kill(self, number: int) -> None:
        """Stop a worker's process."""

    def log(self, text: str) -> None:
        """Show a message to the user of the job."""


class ExternalElasticJob:
    """State of an elastic job whose workers are external processes.

    Attributes:
        roster: Numbers, hosts and ranks of the workers.
        end: Result of the job, or None while it is running.
    """

    def __init__(
        self,
        limits: Limits,
        cooldown: tuple[float, float] | None,
        control: MembershipControl,
        processes: ProcessControl,
        environ: Mapping[str, str],
        machine_of: MachineOf = str,
    ) -> None:
        self.roster = Roster()
        self.end: End | None = None
        self._processes = processes
        self._control = control
        self._membership = Membership(limits, Blacklist(cooldown), time.monotonic(), machine_of)
        self._server = MembershipServer(control, self._membership, self._act, Newcomers.from_environ(environ))
        self._ticked = time.monotonic()
        self._next_tick: float | None = None
        self._standstill = Standstill(time.monotonic())

    @property
    def fd(self) -> int:
        """Descriptor that becomes readable when the caller must call `serve`."""
        return self._control.fd

    def next_time(self) -> float | None:
        """Return the next time (monotonic, s) at which the caller must call `tick`, or None if nothing is scheduled."""
        self._next_tick = self._membership.next_time(self._ticked)
        self._standstill.waits(self._next_tick)
        return self._next_tick

    def serve(self) -> None:
        """Handle the requests that workers have sent."""
        self._server.serve(time.monotonic())

    def tick(self) -> None:
        """Handle expired deadlines. The caller must call this method first in each iteration of its loop."""
        now = time.monotonic()
        # If the driver itself was suspended, do not blame the workers for missed deadlines.
        if stood := self._standstill.look(now):
            self._membership.postpone(stood)
        if self._next_tick is not None and now >= self._next_tick:
            self._ticked = now
            self._do(self._membership.tick(now))

    def set_slots(self, slots: Mapping[str, int]) -> None:
        """Set the current number of slots of each host."""
        self._do(self._membership.discovered(slots, time.monotonic()))

    def exited(self, number: int, success: bool, how: str, victim: bool = False) -> None:
        """Record that a worker's process has exited or left the job.

        Args:
            number: Number of the worker.
            success: True if it exited normally.
            how: How the worker exited, for messages.
            victim: True if the worker exited only because other workers failed.
        """
        self.roster.end(number, success)
        self._server.on_exit(number)
        self._do(self._membership.exited(number, success, time.monotonic(), victim, how))

    def lost(self, host: str) -> None:
        """Record that a host is lost, together with all its workers."""
        for worker in self._membership.workers:
            if worker.host == host:
                self.roster.end(worker.number, False)
                self._server.on_exit(worker.number)
        self._do(self._membership.host_lost(host, time.monotonic()))

    def is_running(self, number: int) -> bool:
        """Return True if the worker's exit has not been recorded yet."""
        return self._membership.workers.find(number) is not None

    def _do(self, actions: list[Action]) -> None:
        if self.end is None:
            self._server.do(actions)

    def _act(self, action: Spawn | Form | Kill | Abandon | Show | End) -> None:
        if isinstance(action, Spawn):
            self.roster.join(action.worker, action.host)
            self._processes.start(action.worker, action.host)
        elif isinstance(action, Form):
            self.roster.form(action.places)
        elif isinstance(action, Kill):
            self._processes.kill(action.worker)
        elif isinstance(action, Abandon):
            self.roster.end(action.worker, False)
        elif isinstance(action, Show):
            self._processes.log(action.text)
        elif self.end is None:
            self.end = action
