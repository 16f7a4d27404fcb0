"""Fixed-size group of workers that live until shutdown. ``RayExecutor`` uses it if ``min_workers`` is not set."""

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
from horovod.ray.calls import Callback, CallbackListener, CallResult, Event, LogMessage, LostWorker, watch
from horovod.ray.settings import Settings
from horovod.ray.strategy import PlacementPlan, Reservation
from horovod.ray.worker import BaseHorovodWorker
from horovod.runner.external_workers import assignment as placing
from horovod.runner.external_workers.assignment import ExternalWorker
from horovod.runner.external_workers.mailbox import Mailbox
from horovod.runner.external_workers.workers import ExternalWorkers
from horovod.runner.function.outcome import worker_error
from horovod.runner.plan.hosts import place

_GRACE = 5.0  # Seconds in which ranks can notice the failure of another rank.
_LATE = 5.0  # Seconds that the driver waits longer than the workers, so that workers report errors first.
_DEATH = 1.0  # Maximum seconds to wait until Ray reports why a worker has died.
_LEAVE = 2.0  # Maximum seconds to wait until idle workers have left the job.
_END = 10.0  # Maximum seconds to wait until killed workers have exited.


class WorkerGroup:
    """Group of workers, which can be started only once.

    Calls from several threads are serialized. ``shutdown`` interrupts the calls of other threads.

    Attributes:
        workers: Actors by rank.
        hosts: Hosts of the actors by rank.
    """

    def __init__(self, settings: Settings, plan: PlacementPlan, group: Any, cpus: int, gpus: int) -> None:
        """Store the arguments without starting anything.

        Args:
            settings: Settings of the executor.
            plan: Resources to request.
            group: Existing placement group to use, or None.
            cpus: Number of CPUs of each worker.
            gpus: Number of GPUs of each worker.
        """
        self._settings = settings
        self._plan = plan
        self._group = group
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
        self.workers: list[Any] = []
        self.hosts: list[str] = []
        self._reservation: Reservation | None = None
        self._servers: ExternalWorkers | None = None
        self._box: Mailbox[Event] = Mailbox()
        self._turn = threading.RLock()  # Lock held by the thread that reads the mailbox.
        self._listener: int | None = None  # Id of the thread that reads the mailbox, or None.
        self._over = False  # True once `shutdown` has been called, even during `start`.
        self._joined: dict[int, Any] = {}  # Ranks whose liveness connections report their exit.
        self._dead: dict[int, str] = {}  # How each lost worker was lost, keyed by rank.
        # Descriptions of lost workers whose suspended processes still exist, keyed by rank.
        self._still: dict[int, str] = {}

    # Start

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the workers, and wait until all of them have ranks assigned. After an exception, call ``shutdown``.

        Args:
            variables: Additional environment variables for all workers.

        Raises:
            ValueError, TimeoutError: If the cluster lacks resources. See ``strategy.find_room``.
            RuntimeError: If a worker does not start, if the versions or settings of the workers differ, or if another
                thread calls ``shutdown``.
        """
        size = len(self._plan.places)
        self._reservation = strategy.find_room(self._plan, self._group, self._settings.placement_group_timeout_s)
        with self._listening():
            # Check for a concurrent `shutdown` again after storing the workers. `shutdown` sets `_over` before it kills
            # the stored workers, so no worker is missed.
            self._check_not_shut_down()
            made = [self._actor(number, size) for number in range(size)]
            self.workers = made
            self._check_not_shut_down()
            descriptions = self._ask([one.describe.remote() for one in made], {}, "did not start")
            self._assign(made, [one for one, _, _ in descriptions], [gpus for _, _, gpus in descriptions], variables)
            self._check_not_shut_down()

    def _check_not_shut_down(self) -> None:
        if self._over:
            raise RuntimeError("shutdown() was called during start(): the workers have been stopped")

    def _actor(self, number: int, size: int) -> Any:
        assert self._reservation is not None
        where = PlacementGroupSchedulingStrategy(
            self._reservation.group, self._reservation.places[number], placement_group_capture_child_tasks=False
        )
        return ray.remote(BaseHorovodWorker).options(scheduling_strategy=where, **self._options).remote(number, size)

    def _assign(
        self,
        actors: Sequence[Any],
        workers: Sequence[ExternalWorker],
        gpus: Sequence[list[str]],
        variables: Mapping[str, str],
    ) -> None:
        if trouble := placing.misfit(workers):
            raise RuntimeError(trouble)
        names = placing.hosts(workers)
        placed = place(dict(enumerate(names)))
        order = [number for number, _ in placed]
        self.workers, self.hosts = [actors[number] for number in order], [names[number] for number in order]
        self._servers, shared = cluster.open_servers(
            self._settings.nics, variables, lambda rank, still: self._box.put(LostWorker(rank, still))
        )
        slots, owned = [slot for _, slot in placed], [gpus[number] for number in order]
        ranks = [workers[number] for number in order]
        assignments = cluster.assignments(self._servers, slots, ranks, owned, shared, self._settings.timeout_s)
        refs = [worker.join.remote(assignment) for worker, assignment in zip(self.workers, assignments, strict=True)]
        # Wait longer than the workers do, because their own timeout errors are more specific.
        self._ask(refs, self._joined, "did not join the job", _LATE)

    def _ask(self, refs: Sequence[Any], replies: dict[int, Any], trouble: str, longer: float = 0.0) -> list[Any]:
        """Wait for the answers of all workers.

        Args:
            refs: Ray references to the answers, ordered by worker number.
            replies: Dict to which answers are added as they arrive, keyed by worker number.
            trouble: What a worker that does not answer failed to do, for error messages.
            longer: Seconds by which to extend the timeout.

        Returns:
            The answers, ordered by worker number.

        Raises:
            RuntimeError: If a call fails.
            TimeoutError: If answers are missing after the timeout.
        """
        seconds = self._settings.timeout_s + longer
        turn, deadline = uuid.uuid4().hex, time.monotonic() + seconds
        for number, ref in enumerate(refs):
            watch(ref, turn, number, self._box)
        while len(replies) < len(refs):
            failed: list[CallResult] = []
            # Also process events of other calls, because they can report lost workers.
            for event in self._box.take(deadline)[0]:
                self._mark_lost(event)
                if isinstance(event, CallResult) and event.turn == turn:
                    if event.error is None:
                        replies[event.number] = event.value
                    else:
                        failed.append(event)
            if failed:
                # If `shutdown` caused the failure, raise an error about the shutdown instead.
                self._check_not_shut_down()
                one = failed[0]
                raise RuntimeError(f"worker {one.number} {trouble}: {one.describe()}{_advice(one)}")
            if time.monotonic() >= deadline:
                late = ", ".join(str(n) for n in range(len(refs)) if n not in replies)
                raise TimeoutError(
                    f"{len(refs) - len(replies)} of {len(refs)} workers ({late}) {trouble} within {seconds:g} s "
                    "(timeout_s of create_settings)"
                )
        return [replies[number] for number in range(len(refs))]

    # Calls

    def send(self, method: str, *args: Any) -> list[Any]:
        """Call a method on all workers without waiting.

        Returns:
            Ray references to the results, in rank order.

        Raises:
            RuntimeError: If there are no workers, or if a worker was lost.
        """
        self.require()
        return [getattr(worker, method).remote(*args) for worker in self.workers]

    def require(self) -> None:
        """Raise RuntimeError if there are no workers, or if a worker was lost."""
        self._require_workers()
        # Handle events, unless another thread does. In a callback, this thread does not handle them either, because the
        # method that runs the callback is waiting for some of them.
        if self._listener != threading.get_ident() and self._turn.acquire(blocking=False):
            try:
                self._handle_events()
            finally:
                self._turn.release()
        if self._dead:
            rank, how = next(iter(sorted(self._dead.items())))
            raise RuntimeError(
                f"rank {rank} on host {self.hosts[rank]} is lost ({how}): call shutdown(), then start() again"
            )

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Wait until the calls of other threads have finished, and then reserve the mailbox for this thread.

        Raises:
            RuntimeError: If a callback calls this method, because it would consume events that the enclosing call waits
                for.
        """
        me = threading.get_ident()
        if self._listener == me:
            raise RuntimeError(
                "a callback has called the executor that waits for it: call it after run() or execute() has returned; "
                "callbacks may call run_remote() and shutdown()"
            )
        with self._turn:
            self._listener = me
            try:
                self._handle_events()
                yield
            finally:
                self._listener = None

    def _handle_events(self) -> None:
        for event in self._box.take(0.0)[0]:
            self._mark_lost(event)

    def _require_workers(self) -> None:
        if not self.workers:
            raise RuntimeError("there are no workers: call start() first, and do not call this after shutdown()")

    def call(self, method: str, *args: Any, callbacks: Sequence[Callback] | None = None) -> list[Any]:
        """Call a method on all workers.

        Args:
            method: Name of the method.
            *args: Arguments of the method.
            callbacks: Functions to call with the messages of ``ray_logger.log``.

        Returns:
            Results in rank order.

        Raises:
            WorkerError: If a worker fails. The other workers get a few seconds to finish first. The error names the
                first worker that failed on its own, and is also an instance of the class of the exception that this
                worker raised.
            RuntimeError: If a callback calls this method, or if workers are missing.
        """
        with self._listening():
            self.require()
            ear = CallbackListener(callbacks, self._box)
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
        """Call a method on rank 0 only, and return its result. Otherwise, this method behaves like ``call``."""
        with self._listening():
            self.require()
            return self._gather({0: getattr(self.workers[0], method).remote(*args)})[0]

    def _gather(self, refs: Mapping[int, Any], ear: CallbackListener | None = None) -> list[Any]:
        """Wait for calls, given as Ray references by rank, and return their results by rank."""
        turn = uuid.uuid4().hex
        results: dict[int, CallResult] = {}
        lost: set[int] = set()
        for rank, ref in refs.items():
            watch(ref, turn, rank, self._box)
        until: float | None = None
        while len(results.keys() | lost) < len(refs) and (until is None or time.monotonic() < until):
            for event in self._box.take(until)[0]:
                if isinstance(event, LogMessage):
                    if ear is not None:
                        ear.notify(event)
                    self._require_workers()  # A callback may have shut down the workers.
                    continue
                self._mark_lost(event)
                if isinstance(event, LostWorker) and event.number in refs:
                    lost.add(event.number)
                elif isinstance(event, CallResult) and event.turn == turn:
                    results[event.number] = event
                    if event.died:
                        lost.add(event.number)
            failed = lost or any(one.error is not None for one in results.values())
            if failed and until is None:
                until = time.monotonic() + _GRACE
            if lost - results.keys() and len(results.keys() | lost) == len(refs):
                self._collect_rest(results, lost, turn)
        if ear is not None:
            ear.finish(self._mark_lost)
        if error := self._first_error(results, lost):
            raise error
        return [results[rank].value for rank in sorted(refs)]

    def _collect_rest(self, results: dict[int, CallResult], lost: set[int], turn: str) -> None:
        """Wait up to a few seconds for Ray to report why the lost workers died."""
        until = time.monotonic() + _DEATH
        while lost - results.keys() and time.monotonic() < until:
            for event in self._box.take(until)[0]:
                if isinstance(event, CallResult) and event.turn == turn:
                    results[event.number] = event
                self._mark_lost(event)

    def _mark_lost(self, event: Event) -> None:
        if isinstance(event, LostWorker):
            self._dead.setdefault(event.number, event.how)
            if event.still:
                self._still[event.number] = event.still
                # Kill the suspended worker. Otherwise, the other ranks would wait for it.
                self._kill(self.workers[event.number])
        elif isinstance(event, CallResult) and event.died and event.number not in self._still:
            self._dead[event.number] = event.describe()

    def _first_error(self, results: Mapping[int, CallResult], lost: set[int]) -> BaseException | None:
        """Return the error of the worker that failed first, or None.

        The order of precedence is: lost workers, workers that raised their own exception, all others.
        """
        failed = [one for _, one in sorted(results.items()) if one.error is not None]
        for rank in sorted(lost):
            if rank in self._still:
                return worker_error(f"{self._describe_rank(rank)}: {self._still[rank]}", rank, self.hosts[rank])
            how = results.get(rank) or CallResult("", rank, error=RayActorError(error_msg="Ray has not said how yet"))
            return how.raised(self._describe_rank(rank), self.hosts[rank], rank)
        for one in [*(one for one in failed if not one.victim), *failed]:
            return one.raised(self._describe_rank(one.number), self.hosts[one.number], one.number)
        return None

    def _describe_rank(self, rank: int) -> str:
        return f"rank {rank} on host {self.hosts[rank]}" if rank < len(self.hosts) else f"worker {rank}"

    # End

    def shutdown(self) -> None:
        """Stop the workers and release their resources. Can be called repeatedly, also after an interrupt.

        If another thread is inside ``start``, that call raises RuntimeError.
        """
        self._over = True
        if ray.is_initialized():  # If Ray has shut down, it has removed the workers.
            self._release_workers()
        # Another thread may hold this lock while it waits for workers. Its wait ends soon: the workers were killed.
        mine = self._turn.acquire(timeout=_END)
        try:
            self._close(mine)
        finally:
            if mine:
                self._turn.release()

    def _close(self, own: bool) -> None:
        if self._servers is not None:
            if own:
                self._await_end()
            self._servers.close()
        if ray.is_initialized():
            for worker in self.workers:  # Kill workers that a concurrent `start` has created since the first attempt.
                self._kill(worker)
            if self._reservation is not None:
                self._reservation.give_back()
        self.workers, self.hosts, self._reservation, self._servers = [], [], None, None
        self._joined.clear()
        self._dead.clear()
        self._still.clear()

    def _release_workers(self) -> None:
        if self._servers is not None and not self._dead:
            with contextlib.suppress(Exception):  # Ignore errors, because the worker might exit in the meantime.
                ray.wait([one.leave.remote() for one in self.workers], num_returns=len(self.workers), timeout=_LEAVE)
        for worker in self.workers:
            self._kill(worker)

    @staticmethod
    def _kill(worker: Any) -> None:
        # Ignore the error, because the worker might belong to an earlier ray.init().
        with contextlib.suppress(RayError):
            ray.kill(worker, no_restart=True)

    def _await_end(self) -> None:
        until = time.monotonic() + _END
        while self._joined.keys() - self._dead.keys() and time.monotonic() < until:
            for event in self._box.take(until)[0]:
                self._mark_lost(event)


def _advice(event: CallResult) -> str:
    text = str(event.error)
    if "No module named 'horovod" in text:
        return (
            "; horovod has to be installed in the Python of the workers, on each node or by ray.init(runtime_env=...)"
        )
    return ""
