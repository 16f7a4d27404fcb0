"""Elastic jobs on Ray, which add and remove workers when the slots of the cluster change.

``horovod.runner.external_workers.workers`` decides which workers belong to the job, as in horovodrun's elastic jobs.
The workers are actors on nodes instead of processes on hosts. Each ``run`` starts its own actors and stops them at the
end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.common.store.membership import MembershipControl
from horovod.ray import cluster
from horovod.ray.calls import Callback, CallbackListener, CallResult, LogMessage, LostWorker, watch
from horovod.ray.cluster import HostNames
from horovod.ray.settings import Settings
from horovod.ray.worker import ElasticWorker
from horovod.runner.external_workers import workers as external_workers
from horovod.runner.external_workers.mailbox import Mailbox
from horovod.runner.external_workers.workers import ExternalElasticJob
from horovod.runner.function.outcome import worker_error

_EVERY = 1.0  # Seconds between two checks of the cluster.
_END = 10.0  # Maximum seconds to wait until killed workers have exited.


class _ShutdownCalled:
    """Event that reports a call to ``shutdown``."""


@dataclass(frozen=True)
class _Discovered:
    """Event that reports a result of host discovery.

    Attributes:
        slots: Number of slots by host.
        trouble: Reason if the discovery has failed, or an empty string.
    """

    slots: Mapping[str, int]
    trouble: str = ""


class ElasticJob:
    """Elastic job in which each ``run`` starts its own workers.

    Attributes:
        limits: Limits on the number of workers and on the changes per run.
    """

    def __init__(self, settings: Settings, cpus: int, gpus: int) -> None:
        """Check and store the settings.

        Args:
            settings: Settings of the executor. ``settings.discovery`` finds hosts.
            cpus: Number of CPUs of each worker.
            gpus: Number of GPUs of each worker.

        Raises:
            ValueError: If a setting is invalid.
        """
        self.limits = settings.limits()
        if not callable(getattr(settings.discovery, "find_available_hosts_and_slots", None)):
            raise ValueError(
                "settings.discovery must have a method find_available_hosts_and_slots if override_discovery is False, "
                f"got {settings.discovery!r}"
            )
        self._settings = settings
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
        self._variables: Mapping[str, str] | None = None
        self._executable: tuple[Any, ...] = ()
        self._boxes: dict[int, Mailbox[Any]] = {}  # Mailboxes of the active runs, keyed by the run's thread.

    def prepare(self, variables: Mapping[str, str], executable: tuple[Any, ...] = (None, None, None)) -> None:
        """Allow ``run`` to be called.

        Args:
            variables: Environment variables of the workers.
            executable: Class, args and kwargs of the executable of each worker.
        """
        cluster.require()
        self._variables, self._executable = dict(variables), executable

    def forget(self) -> None:
        """Stop the runs in progress in other threads, and reject new runs until ``prepare`` is called."""
        self._variables = None
        for box in list(self._boxes.values()):
            box.put(_ShutdownCalled())

    def run(self, func: Callable[[Any], Any], callbacks: Sequence[Callback] | None) -> list[Any]:
        """Call ``func(executable)`` in each worker. Workers can be added and removed during the run.

        Args:
            func: Function to call in each worker.
            callbacks: Functions to call with the messages of ``ray_logger.log``.

        Returns:
            Results of the workers that were in the job at its end, in rank order.

        Raises:
            RuntimeError: If a callback calls this method, or if ``forget`` is called before or during the run.
            WorkerError: If the job fails.
        """
        me = threading.get_ident()
        if me in self._boxes:
            raise RuntimeError(
                "a callback has called the executor that waits for it: call it when run() or execute() has returned"
            )
        # Register the mailbox before `_run` reads `_variables`. A concurrent call of `forget` clears `_variables` and
        # then notifies the mailboxes. This run therefore either finds no variables or is notified.
        box = self._boxes[me] = Mailbox()
        try:
            return self._run(box, func, callbacks)
        finally:
            del self._boxes[me]

    def _run(self, box: Mailbox[Any], func: Callable[[Any], Any], callbacks: Sequence[Callback] | None) -> list[Any]:
        variables, made = self._variables, self._executable
        if variables is None:
            raise RuntimeError("there is no job: call start() first, and do not call this after shutdown()")

        def work(worker: Any) -> Any:
            worker.start_executable(*made)
            return func(worker.executable)

        with contextlib.closing(_Run(self._settings, self.limits, self._options, variables, work, box)) as run:
            return run.go(callbacks)


class _Run:
    """Single run of an elastic job, with an event loop in the caller's thread."""

    def __init__(
        self,
        settings: Settings,
        limits: Any,
        options: Mapping[str, Any],
        variables: Mapping[str, str],
        work: Any,
        box: Mailbox[Any],
    ) -> None:
        self._settings = settings
        self._options = options
        self._work = ray.put(work)
        self._box = box
        names = getattr(settings.discovery, "names", None)
        self._names = names if isinstance(names, HostNames) else HostNames()
        with contextlib.ExitStack() as at_failure:
            self._control = MembershipControl()
            at_failure.callback(self._control.close)
            self._servers, self._shared = cluster.open_servers(
                settings.nics, variables, lambda number, still: self._box.put(LostWorker(number, still)), self._control
            )
            at_failure.callback(self._servers.close)
            self._elastic_job = ExternalElasticJob(
                limits, settings.cooldown_range, self._control, self, os.environ, self._names.machine
            )
            at_failure.pop_all()
        self._actors: dict[int, Any] = {}
        self._joined: set[int] = set()
        self._hosts: set[str] = set()
        self._turns: dict[str, str] = {}  # Maps the identifier of each call to the name of the called method.
        self._results: dict[int, Any] = {}
        self._failed: CallResult | None = None
        self._ear: CallbackListener | None = None
        self._stop = threading.Event()
        self._finder = threading.Thread(target=self._find, name="horovod-ray-nodes", daemon=True)

    def go(self, callbacks: Sequence[Callback] | None) -> list[Any]:
        self._ear = ear = CallbackListener(callbacks, self._box)
        self._finder.start()
        while self._elastic_job.end is None:
            events, ready = self._box.take(self._elastic_job.next_time(), (self._elastic_job.fd,))
            self._elastic_job.tick()
            for event in events:
                self._take(event, ear)
            if ready:
                self._elastic_job.serve()
        ear.finish(self._note)
        if not self._elastic_job.end.success:
            raise self._error(self._elastic_job.end.text)
        results = self._elastic_job.roster.by_rank(self._results)
        return [results[rank] for rank in sorted(results)]

    def _error(self, text: str) -> BaseException:
        if self._failed is None:
            return worker_error(text)
        rank = self._elastic_job.roster.rank_of(self._failed.number)
        host = self._elastic_job.roster.hosts[self._failed.number]
        who = (
            f"{text}\nthe last worker that failed was {'a new one' if rank is None else f'rank {rank}'} on host {host}"
        )
        return self._failed.raised(who, host, rank)

    # Events

    def _take(self, event: Any, ear: CallbackListener) -> None:
        if isinstance(event, LogMessage):
            ear.notify(event)
        elif isinstance(event, _Discovered):
            self._take_hosts(event)
        elif isinstance(event, LostWorker):
            self._on_exit(event)
        elif isinstance(event, _ShutdownCalled):
            raise RuntimeError("shutdown() was called while the job was running: its workers have been stopped")
        elif isinstance(event, CallResult):
            self._on_result(event, self._turns.pop(event.turn, ""))

    def _on_result(self, event: CallResult, what: str) -> None:
        if self._elastic_job.is_running(event.number):
            if event.error is not None:
                self._fail(event)
            elif what == "describe":
                self._assign(event)
            elif what == "join":
                self._joined.add(event.number)
                self._set_to_work(event.number)
            elif what == "work":
                self._results[event.number] = event.value
                self._end(event.number)
                self._elastic_job.exited(event.number, True, "")

    def _take_hosts(self, event: _Discovered) -> None:
        if event.trouble:
            if not self._hosts:
                raise RuntimeError(event.trouble)
            self.log(f"warning: {event.trouble}; the job goes on with the hosts that were found before")
            return
        if getattr(self._settings.discovery, "abrupt", False):
            for host in self._hosts - event.slots.keys():
                for number in [n for n, where in self._elastic_job.roster.hosts.items() if where == host]:
                    self._end(number)
                self._elastic_job.lost(host)
        self._hosts = set(event.slots)
        self._elastic_job.set_slots(event.slots)

    def _on_exit(self, event: LostWorker) -> None:
        self._joined.discard(event.number)
        if self._elastic_job.is_running(event.number):
            self._end(event.number)
            self._elastic_job.exited(event.number, False, event.how)

    def _fail(self, event: CallResult) -> None:
        if not event.victim and not event.died:
            self._failed = event
        self._end(event.number)
        self._elastic_job.exited(event.number, False, event.describe(), event.victim)

    def _assign(self, event: CallResult) -> None:
        actor, (worker, _, _) = self._actors[event.number], event.value
        machine = self._names.machine(self._elastic_job.roster.hosts[event.number])
        own = external_workers.of_member(event.number, machine, self._settings.elastic_timeout)
        assignment = self._servers.assign(event.number, worker, {**self._shared, **own}, self._settings.timeout_s)
        self._watch(actor.join.remote(assignment), "join", event.number)

    def _set_to_work(self, number: int) -> None:
        """Call the function in a worker.

        The worker must already have its rank assignment. Otherwise, hvd.init() would start a separate job.
        """
        actor = self._actors[number]
        if self._ear is not None and self._ear.queue is not None:
            actor.set_queue.remote(self._ear.queue)
        self._watch(actor.work.remote(self._work), "work", number)

    def _watch(self, ref: Any, what: str, number: int) -> None:
        turn = uuid.uuid4().hex
        self._turns[turn] = what
        watch(ref, turn, number, self._box)

    def _find(self) -> None:
        """Run host discovery repeatedly in a separate thread, and report changes."""
        last: Any = None
        while not self._stop.is_set():
            try:
                slots = self._settings.discovery.find_available_hosts_and_slots()
                found = _Discovered(dict(slots))
            except Exception as error:  # Catch all exceptions, because the user's discovery object can raise any type.
                found = _Discovered({}, f"hosts could not be found: {type(error).__name__}: {error}")
            if (found.trouble, list(found.slots.items())) != last:
                last = found.trouble, list(found.slots.items())
                self._box.put(found)
            self._stop.wait(_EVERY)

    def start(self, number: int, host: str) -> None:
        """Start worker `number` as an actor on the node named `host`."""
        node = self._names.node(host) or cluster.find(ray.nodes(), host)
        if node is None:
            self._box.put(CallResult("", number, error=RuntimeError(f"Ray has no node that goes by the name {host}")))
            return
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(ElasticWorker).options(scheduling_strategy=where, **self._options).remote()
        self._actors[number] = actor
        self._watch(actor.describe.remote(), "describe", number)

    def kill(self, number: int) -> None:
        """Kill a worker. A later event reports its exit."""
        if number in self._actors:
            ray.kill(self._actors[number], no_restart=True)
            # Report the exit here, because the worker has no liveness connection yet that would report it.
            if number not in self._joined:
                self._box.put(LostWorker(number))

    def log(self, text: str) -> None:
        """Print a message to this program's stderr if `verbose` is set."""
        if self._settings.verbose:
            print(f"horovod: {text}", file=sys.stderr, flush=True)

    def _end(self, number: int) -> None:
        """Kill the worker if it exists, and remove it from the job."""
        if (actor := self._actors.pop(number, None)) is not None:
            with contextlib.suppress(RayError):
                ray.kill(actor, no_restart=True)
        self._servers.forget(number)

    def _note(self, event: Any) -> None:
        """Record that a worker has exited after the end of the run. The exit no longer changes the job's membership."""
        if isinstance(event, LostWorker):
            self._joined.discard(event.number)

    def close(self) -> None:
        """Stop all workers and threads of this run."""
        self._stop.set()
        for number in list(self._actors):
            self._end(number)
        until = time.monotonic() + _END
        while self._joined and time.monotonic() < until:
            for event in self._box.take(until)[0]:
                self._note(event)
        if self._ear is not None:
            self._ear.close()
        if self._finder.ident is not None:
            self._finder.join(_END)
        self._servers.close()
        self._control.close()
