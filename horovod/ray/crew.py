"""Workers of a fixed number that live until they are told to go: what ``RayExecutor`` is without ``min_workers``."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.ray import cluster, strategy
from horovod.ray.calls import Callback, Done, Ear, Event, Gone, Logged, watch
from horovod.ray.settings import Settings
from horovod.ray.strategy import Plan, Room
from horovod.ray.worker import BaseHorovodWorker
from horovod.runner.cluster.placement import place
from horovod.runner.function.worker_error import worker_error
from horovod.runner.resident import placing
from horovod.runner.resident.mailbox import Mailbox
from horovod.runner.resident.residence import Residence
from horovod.runner.resident.seat import Resident

_GRACE = 5.0  # s for the other ranks to notice that one has failed
_LATE = 5.0  # s beyond the time that workers have to take their seats
_DEATH = 1.0  # s for Ray to say how a worker has died, beyond that it has
_LEAVE = 2.0  # s for workers that do nothing else to leave the job
_END = 10.0  # s for killed ones to be gone


class Crew:
    """``start`` it once. ``workers``: the actors by rank; ``hosts``: by rank, where they are. Threads that call
    something take turns; ``shutdown`` ends what another thread waits for."""

    def __init__(self, settings: Settings, plan: Plan, group: Any, cpus: int, gpus: int) -> None:
        """``group``: a placement group that exists, or None. Nothing is started yet."""
        self._settings = settings
        self._plan = plan
        self._group = group
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
        self.workers: list[Any] = []
        self.hosts: list[str] = []
        self._room: Room | None = None
        self._residence: Residence | None = None
        self._box: Mailbox[Event] = Mailbox()
        self._turn = threading.RLock()  # to listen to the box
        self._listener: int | None = None  # the thread whose turn it is
        self._over = False  # `shutdown` was called, maybe while `start` is under way
        self._seated: dict[int, Any] = {}  # ranks whose end the residence tells
        self._dead: dict[int, str] = {}
        self._still: dict[int, str] = {}  # of those, who has not ended but stands still

    # Start

    def start(self, variables: Mapping[str, str]) -> None:
        """Returns when all workers have their seats. ``variables``: for all of them, beside our own. Raises ValueError
        and TimeoutError as ``strategy.find_room``, RuntimeError naming a worker that does not start or does not fit, or
        when another thread has called ``shutdown`` meanwhile; ``shutdown`` then ends what has been started."""
        size = len(self._plan.places)
        self._room = strategy.find_room(self._plan, self._group, self._settings.placement_group_timeout_s)
        with self._listening():
            # Whatever is made is kept first and `_over` read then; `shutdown` does both in the other order.
            self._go_on()
            made = [self._actor(number, size) for number in range(size)]
            self.workers = made
            self._go_on()
            told = self._ask([one.describe.remote() for one in made], {}, "did not start")
            self._seat(made, [one for one, _, _ in told], [gpus for _, _, gpus in told], variables)
            self._go_on()

    def _go_on(self) -> None:
        if self._over:
            raise RuntimeError("shutdown() was called while start() was under way: the workers have been ended")

    def _actor(self, number: int, size: int) -> Any:
        assert self._room is not None
        where = PlacementGroupSchedulingStrategy(
            self._room.group, self._room.places[number], placement_group_capture_child_tasks=False
        )
        return ray.remote(BaseHorovodWorker).options(scheduling_strategy=where, **self._options).remote(number, size)

    def _seat(
        self,
        made: Sequence[Any],
        residents: Sequence[Resident],
        gpus: Sequence[list[str]],
        variables: Mapping[str, str],
    ) -> None:
        if trouble := placing.misfit(residents):
            raise RuntimeError(trouble)
        names = placing.hosts(residents)
        placed = place(dict(enumerate(names)))
        order = [number for number, _ in placed]
        self.workers, self.hosts = [made[number] for number in order], [names[number] for number in order]
        self._residence, shared = cluster.open_residence(
            self._settings.nics, variables, lambda rank, still: self._box.put(Gone(rank, still))
        )
        slots, owned = [slot for _, slot in placed], [gpus[number] for number in order]
        ranks = [residents[number] for number in order]
        seats = cluster.seats(self._residence, slots, ranks, owned, shared, self._settings.timeout_s)
        refs = [worker.sit.remote(seat) for worker, seat in zip(self.workers, seats, strict=True)]
        # A worker says more of why than that it is late.
        self._ask(refs, self._seated, "did not take its seat", _LATE)

    def _ask(self, refs: Sequence[Any], answers: dict[int, Any], trouble: str, longer: float = 0.0) -> list[Any]:
        """The answers of all workers, within the timeout and so many seconds more. ``answers``: gets each as it
        comes."""
        seconds = self._settings.timeout_s + longer
        turn, deadline = uuid.uuid4().hex, time.monotonic() + seconds
        for number, ref in enumerate(refs):
            watch(ref, turn, number, self._box)
        while len(answers) < len(refs):
            failed: list[Done] = []
            for event in self._box.take(deadline)[0]:  # all of them: one may be the end of another worker
                self._bury(event)
                if isinstance(event, Done) and event.turn == turn:
                    if event.error is None:
                        answers[event.number] = event.value
                    else:
                        failed.append(event)
            if failed:
                self._go_on()  # else whoever has called `shutdown` knows why
                one = failed[0]
                raise RuntimeError(f"worker {one.number} {trouble}: {one.words()}{_advice(one)}")
            if time.monotonic() >= deadline:
                late = ", ".join(str(n) for n in range(len(refs)) if n not in answers)
                raise TimeoutError(
                    f"of {len(refs)} workers {len(refs) - len(answers)} ({late}) {trouble} within {seconds:g} s "
                    "(timeout_s of create_settings)"
                )
        return [answers[number] for number in range(len(refs))]

    # Calls

    def send(self, method: str, *args: Any) -> list[Any]:
        """Calls a method of all workers; what comes of it, by rank, as Ray's references. Raises RuntimeError when
        workers are not there any more."""
        self.require()
        return [getattr(worker, method).remote(*args) for worker in self.workers]

    def require(self) -> None:
        """Raises RuntimeError without workers, or when one has died."""
        self._there()
        # Whose turn it is, that hears of deaths; a callback must not take what the call around it waits for.
        if self._listener != threading.get_ident() and self._turn.acquire(blocking=False):
            try:
                self._catch_up()
            finally:
                self._turn.release()
        if self._dead:
            rank, how = next(iter(sorted(self._dead.items())))
            raise RuntimeError(
                f"rank {rank} on host {self.hosts[rank]} is not there any more ({how}): shutdown() and start() again"
            )

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """In turn with other threads. Raises RuntimeError in a callback of a call: its events would be lost."""
        me = threading.get_ident()
        if self._listener == me:
            raise RuntimeError(
                "a callback has called the executor that waits for it: call it when run() or execute() has returned; "
                "accepted in callbacks are run_remote() and shutdown()"
            )
        with self._turn:
            self._listener = me
            try:
                self._catch_up()
                yield
            finally:
                self._listener = None

    def _catch_up(self) -> None:
        for event in self._box.take(0.0)[0]:
            self._bury(event)

    def _there(self) -> None:
        if not self.workers:
            raise RuntimeError("there are no workers: call start() before, and nothing after shutdown()")

    def call(self, method: str, *args: Any, callbacks: Sequence[Callback] | None = None) -> list[Any]:
        """The results of all workers, by rank. Raises WorkerError, a RuntimeError, when one fails, naming the first
        that did by itself; where it raised an exception, of its class too. The others have had some seconds to end.
        RuntimeError within a callback, too."""
        with self._listening():
            self.require()
            ear = Ear(callbacks, self._box)
            try:
                if ear.queue is not None:
                    self._gather(dict(enumerate(self.send("set_queue", ear.queue))))
                return self._gather(dict(enumerate(self.send(method, *args))), ear)
            finally:
                ear.close()
                if callbacks:
                    for worker in self.workers:
                        worker.set_queue.remote(None)

    def call_first(self, method: str, *args: Any) -> Any:
        """The result of rank 0, which alone is called; otherwise as ``call``."""
        with self._listening():
            self.require()
            return self._gather({0: getattr(self.workers[0], method).remote(*args)})[0]

    def _gather(self, refs: Mapping[int, Any], ear: Ear | None = None) -> list[Any]:
        """What comes of these calls, by rank, in the order of ranks."""
        turn = uuid.uuid4().hex
        done: dict[int, Done] = {}
        gone: set[int] = set()
        for rank, ref in refs.items():
            watch(ref, turn, rank, self._box)
        until: float | None = None
        while len(done.keys() | gone) < len(refs) and (until is None or time.monotonic() < until):
            for event in self._box.take(until)[0]:
                if isinstance(event, Logged):
                    if ear is not None:
                        ear.tell(event)
                    self._there()  # after whatever a callback has done
                    continue
                self._bury(event)
                if isinstance(event, Gone) and event.number in refs:
                    gone.add(event.number)
                elif isinstance(event, Done) and event.turn == turn:
                    done[event.number] = event
                    if event.died:
                        gone.add(event.number)
            failed = gone or any(one.error is not None for one in done.values())
            if failed and until is None:
                until = time.monotonic() + _GRACE
            if gone - done.keys() and len(done.keys() | gone) == len(refs):
                self._hear_out(done, gone, turn)
        if ear is not None:
            ear.finish(self._bury)
        if error := self._judge(done, gone):
            raise error
        return [done[rank].value for rank in sorted(refs)]

    def _hear_out(self, done: dict[int, Done], gone: set[int], turn: str) -> None:
        """Ray says a moment later what it knows of the end of those that are gone."""
        until = time.monotonic() + _DEATH
        while gone - done.keys() and time.monotonic() < until:
            for event in self._box.take(until)[0]:
                if isinstance(event, Done) and event.turn == turn:
                    done[event.number] = event
                self._bury(event)

    def _bury(self, event: Event) -> None:
        if isinstance(event, Gone):
            self._dead.setdefault(event.number, event.how)
            if event.still:
                self._still[event.number] = event.still
                self._kill(self.workers[event.number])  # the others wait for it
        elif isinstance(event, Done) and event.died and event.number not in self._still:
            self._dead[event.number] = event.words()

    def _judge(self, done: Mapping[int, Done], gone: set[int]) -> BaseException | None:
        """Whom to blame: who has died, before who has raised an exception of its own, before all others."""
        failed = [one for _, one in sorted(done.items()) if one.error is not None]
        for rank in sorted(gone):
            if rank in self._still:
                return worker_error(f"{self._who(rank)}: {self._still[rank]}", rank, self.hosts[rank])
            how = done.get(rank) or Done("", rank, error=RayActorError(error_msg="Ray has not said how yet"))
            return how.raised(self._who(rank), self.hosts[rank], rank)
        for one in [*(one for one in failed if not one.victim), *failed]:
            return one.raised(self._who(one.number), self.hosts[one.number], one.number)
        return None

    def _who(self, rank: int) -> str:
        return f"rank {rank} on host {self.hosts[rank]}" if rank < len(self.hosts) else f"worker {rank}"

    # End

    def shutdown(self) -> None:
        """Ends the workers and gives back what they had. May be called again, also when it was interrupted.
        ``start`` in another thread raises then."""
        self._over = True
        if ray.is_initialized():  # else all that was Ray's has ended with it
            self._dismiss()
        mine = self._turn.acquire(timeout=_END)  # of a thread whose workers are dead now
        try:
            self._close(mine)
        finally:
            if mine:
                self._turn.release()

    def _close(self, mine: bool) -> None:
        if self._residence is not None:
            if mine:
                self._await_end()
            self._residence.close()
        if ray.is_initialized():
            for worker in self.workers:  # again: some may have been made meanwhile
                self._kill(worker)
            if self._room is not None:
                self._room.give_back()
        self.workers, self.hosts, self._room, self._residence = [], [], None, None
        self._seated.clear()
        self._dead.clear()
        self._still.clear()

    def _dismiss(self) -> None:
        if self._residence is not None and not self._dead:
            with contextlib.suppress(Exception):  # one may have died just now
                ray.wait([one.leave.remote() for one in self.workers], num_returns=len(self.workers), timeout=_LEAVE)
        for worker in self.workers:
            self._kill(worker)

    @staticmethod
    def _kill(worker: Any) -> None:
        with contextlib.suppress(RayError):  # of an earlier ray.init(), and gone
            ray.kill(worker, no_restart=True)

    def _await_end(self) -> None:
        until = time.monotonic() + _END
        while self._seated.keys() - self._dead.keys() and time.monotonic() < until:
            for event in self._box.take(until)[0]:
                self._bury(event)


def _advice(event: Done) -> str:
    text = str(event.error)
    if "No module named 'horovod" in text:
        return (
            "; horovod has to be installed in the Python of the workers, on each node or by ray.init(runtime_env=...)"
        )
    return ""
