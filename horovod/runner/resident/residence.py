"""The driver's side of a job of residents: its key, its store, and three doors: one at which workers get the key, one
for their lifelines, and one for their signs of life."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict

from horovod.common.contract.descriptors import make_room
from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import WorkerEnv, make_key
from horovod.common.handover.handover import Handover
from horovod.common.store.door import descriptors_for, listen
from horovod.common.store.front import Front
from horovod.common.store.server import StoreServer
from horovod.runner.job.elastic_orders import without_place
from horovod.runner.plan import environment
from horovod.runner.plan.hosts import Slot
from horovod.runner.resident.lifeline import Lines
from horovod.runner.resident.seat import Resident, Seat

OWN = "HOROVOD_"
"""Variables of the driver that begin so reach the workers."""

_TIMEOUT = "HOROVOD_HEARTBEAT_TIMEOUT"
_EACH = 4  # connections of a worker: its line, its signs of life, and up to two to the store


class Residence:
    """Until ``close``. Threads of its own, no process. May be used by one thread at a time."""

    def __init__(
        self,
        address: str,
        gone: Callable[[int, str], None],
        front: Front | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``address``: of this host, where workers reach it. ``gone``: gets, in a thread of ours, the number of a
        worker that has ended, or left, and an empty text; the text says it of one that stands still. ``front``: of an
        elastic job. ``variables``: those of all workers, of which HOROVOD_HEARTBEAT_TIMEOUT counts here. Raises
        ValueError when this host has no such address, naming that variable, or when this process may not open enough
        files."""
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
            self._door = door.getsockname()[1]
            handover = Handover([door], self._known.get, key, store.address[1])
            at_failure.callback(handover.close)
            line = listen(address)
            at_failure.callback(line.close)
            self._line = line.getsockname()[1]
            pulse = listen(address)
            at_failure.callback(pulse.close)
            self._pulse = pulse.getsockname()[1]
            lines = Lines(line, pulse, key, self._silence, gone)
            at_failure.pop_all()
        self._public = handover.public
        self._lines = lines
        self._open = (lines, handover, store)

    def seat(self, number: int, resident: Resident, variables: Mapping[str, str], seconds: float) -> Seat:
        """For this worker, of this number. ``variables``: see ``of_slot``, ``of_member``. Raises ValueError
        when this process may not open enough files for all that have a seat."""
        self._known[number] = resident.public
        # Those that are there may still have to come to the store; room for that is wanted, but nobody refused for it.
        coming = max(1, len(self._known) - self._lines.there)
        make_room(descriptors_for(_EACH * len(self._known)), at_least=descriptors_for(_EACH * coming))
        where = self._address, self._door, self._line, self._pulse
        return Seat(number, *where, self._public, dict(variables), seconds, self._silence)

    def forget(self, number: int) -> None:
        """This worker will not come any more."""
        self._known.pop(number, None)

    def close(self) -> None:
        """Workers that have a seat still end now. May be called again."""
        for one in self._open:
            one.close()


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What reaches the workers of the driver's own variables: settings, nothing of a job that it may be in itself."""
    own = {name: value for name, value in environ.items() if name.startswith(OWN)}
    return environment.passed_on(without_place(own))


def of_slot(slot: Slot) -> dict[str, str]:
    """The variables of a worker in a job of fixed members."""
    place = asdict(slot)
    del place["python"]
    return WorkerEnv(**place).to_environ()


def of_member(number: int, host: str, timeout: float) -> dict[str, str]:
    """Of one in an elastic job; ``timeout`` (s) of the job. Its place comes with each epoch."""
    made = WorkerEnv(hostname=host, worker=number).to_environ()
    told = {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_TIMEOUT": f"{timeout:g}"}
    return without_place(made) | told
