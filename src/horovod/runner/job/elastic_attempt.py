"""One attempt at running an elastic job, from host discovery until the last process has exited.

The event loop in `watch` calls this module. `elastic.membership` decides which workers are members. This module reports
events to it and carries out its actions. The events are: hosts are found or lost (`elastic.finder`, `host_agents`),
agents report that workers exit or are suspended, and workers send requests (`membership_server`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping

from horovod.common.contract import reasons
from horovod.common.contract.worker_env import make_key
from horovod.common.store.membership import MembershipControl
from horovod.runner.agent.messages import (
    Exited,
    Output,
    Report,
    Result,
    Started,
    Stopped,
    StreamData,
    StreamEnd,
    StreamOpen,
    WorkerReport,
)
from horovod.runner.attribution import first_failure
from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.base.job_result import describe_status
from horovod.runner.elastic.actions import Abandon, Action, End, Form, Kill, Phase, Show, Spawn, Standstill, outside_run
from horovod.runner.elastic.finder import Discovered, Source
from horovod.runner.elastic.limits import Blacklist, Limits, Newcomers
from horovod.runner.elastic.membership import Membership
from horovod.runner.elastic.workers import candidates, foreseen
from horovod.runner.job.attempt import AgentAttempt
from horovod.runner.job.chaos_log import ChaosLog
from horovod.runner.job.host_agents import STRANGERS, HostAgents, HostLost
from horovod.runner.job.membership_server import MembershipServer, Roster, StoppedWorkers
from horovod.runner.job.orders import ElasticOrders
from horovod.runner.job.policy import AGENT_GRACE, TERM_GRACE
from horovod.runner.job.progress import UninitializedJobCheck, users_command
from horovod.runner.job.store_relay import StoreRelay, open_store
from horovod.runner.job.watch import Watch
from horovod.runner.output.rank_files import RankFileError
from horovod.runner.plan.hosts import Slot
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from horovod.runner.remote.connections import Agent
from horovod.runner.remote.fleet import Fleet
from horovod.runner.remote.routes import Locality


class ElasticAttempt(AgentAttempt):
    """One attempt at running an elastic job, with the same interface as `Attempt`.

    Attributes:
        lost: Always empty, because the job continues after the loss of a host.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        elastic: ElasticSettings,
        environ: Mapping[str, str],
        watch: Watch,
        fleet: Fleet,
        finder: Source,
        roster: Roster,
        *,
        payload: bytes | None = None,
        results: bool = False,
    ) -> None:
        """Open the job's store. Raises OSError if it cannot be opened.

        Processes are started later, as hosts are found.
        """
        super().__init__(settings, watch, fleet, roster.hosts)
        self._finder = finder
        self._roster = roster
        self._results: dict[int, bytearray] = {}
        self._end: End | None = None
        self._stopping = False
        self._launched = False
        # Next deadline of `_membership`, computed before the last wait for events.
        self._next_tick: float | None = None
        self._chaos = ChaosLog(elastic.faults) if elastic.chaos_report else None
        self._uninitialized = UninitializedJobCheck(elastic.start, users_command(settings, payload))
        self._ticked = time.monotonic()  # Time of the last call of `Membership.tick`
        self._standstill = Standstill(time.monotonic())
        self._stopped = StoppedWorkers(settings.heartbeat_timeout)
        bounds = elastic.start, elastic.least, elastic.max_np, elastic.resets
        limits = Limits(*bounds, elastic.timeout, names=settings.names)
        self._membership = Membership(limits, Blacklist(elastic.cooldown), time.monotonic(), finder.machine_of)
        key = make_key()
        self._control = MembershipControl()
        self._store = open_store(key, self._control)
        self._relay = StoreRelay(self._store.address, STRANGERS)
        self._server = MembershipServer(self._control, self._membership, self._act, Newcomers.from_environ(environ))
        place = self._store.address, payload, results, self._foreseen, finder.machine_of
        orders = ElasticOrders(settings, elastic, environ, key, *place)
        pythons = {host.name: host.python for host in elastic.hosts}
        self._locality = Locality(asks_ssh=not fleet.has_own_reach, looks=not fleet.agents_connect)
        self._hosts = HostAgents(
            fleet, self._relay, orders, pythons, settings.start_timeout, self._locality, settings.names
        )

    def start(self) -> None:
        """Do nothing, because host discovery is already running."""

    def launch(self) -> None:
        """Do nothing, because workers start when their hosts are found."""

    def stop(self, grace: float, first: int = 0) -> None:
        if not self._stopping:
            self._stopping = True
            self.endings.stop(self._screen.tails())
            for line in self._chaos.lines() if self._chaos is not None else ():
                self._screen.log(line)
            self._finder.close()
            self._hosts.stop()
        self._stop_agents(grace, first)

    def suspend(self) -> None:
        super().suspend()
        self._standstill = Standstill(time.monotonic())

    def _postpone(self, seconds: float) -> None:
        self._membership.postpone(seconds)
        self._hosts.postpone(seconds)
        self._stopped.postpone(seconds)

    @property
    def ended(self) -> bool:
        return self._stopping and all(agent.closed or agent.finished for agent in self._fleet.agents)

    def close(self) -> None:
        """Stop all processes of the attempt that are still running, and wait until they have exited."""
        self._finder.close()
        try:
            self._fleet.end(AGENT_GRACE)
        finally:
            self._relay.close()
            self._store.close()
            self._control.close()
            self._locality.close()

    def events(self, listening: bool) -> dict[int, int]:
        wanted = {**self._fleet.events(listening), **self._relay.events(), **self._finder.events()}
        if self._stopping:
            return wanted
        return {**wanted, self._control.fd: select.POLLIN, self._locality.fd: select.POLLIN}

    def serve(self, ready: set[int], listening: bool) -> None:
        # If the launcher was suspended, extend all deadlines before checking any of them.
        if stood := self._standstill.look(time.monotonic()):
            self._postpone(stood)
        if listening:
            self._hosts.take_troubles(self._fleet.receive(ready, self._take))
        self._fleet.flush()
        self._relay.serve(ready)
        if not self._stopping and self._control.fd in ready:
            self._server.serve(time.monotonic())

    def next_time(self) -> float | None:
        clocks = [self._fleet.next_time(), self._uninitialized.next_time()]
        if not self._stopping:
            # Use the time of the last tick, not the current time, to include deadlines that have passed since then.
            self._next_tick = self._membership.next_time(self._ticked)
            clocks += [self._next_tick, self._finder.next_time(), self._hosts.next_time(), self._stopped.next_time()]
        until = min((at for at in clocks if at is not None), default=None)
        self._standstill.waits(until)
        return until

    def tick(self, now: float, listening: bool) -> None:
        self._hosts.take_troubles(self._fleet.look(now, listening))
        if self._stopping:
            return
        # While the job finishes, workers exit normally. Do not log their exits as effects of injected faults.
        if self._chaos is not None and self._membership.phase is not Phase.FINISHING:
            running = self._membership.epoch if self._membership.phase is Phase.RUNNING else 0
            self._chaos.epoch(running, now, [member.number for member in self._membership.members])
        if remark := self._uninitialized.early(now, bool(self.endings.called)):
            self._screen.log(remark)
        self._find(now)
        for event in self._hosts.tick(now):
            for number in event.workers if isinstance(event, HostLost) else (event.worker,):
                self._roster.end(number, False)
                self._bury(number)
                self._forget(number)
            if isinstance(event, HostLost):
                self._screen.log(event.why)
                self._finder.lost(event.host)
                self._do(self._membership.host_lost(event.host, now))
            else:
                self._do(self._membership.exited(event.worker, False, now, victim=True))
        for number in self._stopped.take_late(now):
            seconds = self._settings.heartbeat_timeout
            self._do(self._membership.accused([number], now, f"it has been stopped (SIGSTOP?) for {seconds:g} s"))
        if self._next_tick is not None and now >= self._next_tick:
            self._ticked = now
            self._do(self._membership.tick(now))

    def doubtful(self, now: float) -> bool:
        return False

    def late(self) -> str:
        """Return an empty string. Elastic jobs report a slow start through their elastic timeout instead."""
        return ""

    @property
    def ends(self) -> list[RankEnd]:
        return [] if self._end is not None and self._end.success else self._roster.ends(self.endings.ends)

    @property
    def results(self) -> dict[int, bytearray]:
        """Maps each rank of the last epoch to the contents of its result file."""
        return self._roster.by_rank(self._results)

    def remark(self) -> str:
        """Return a warning if the job succeeded without any rank calling hvd.init(), or else an empty string."""
        return self._uninitialized.late(bool(self.endings.called))

    def _find(self, now: float) -> None:
        found = self._finder.look(now)
        if isinstance(found, Discovered):
            self._hosts.set_slots(found.slots)
            self._do(self._membership.discovered(found.slots, now, found.certain, found.complete, found.by))
        elif found is not None and found.first:
            self._watch.fail(found.why)
        elif found is not None:
            self._screen.log(f"warning: {found.why}\nthe job goes on with the hosts that were found before")

    def _take(self, agent: Agent, report: Report) -> None:
        if isinstance(report, Output):
            self._show(report)
        elif isinstance(report, (StreamOpen, StreamData, StreamEnd)):
            self._relay.take(agent, report)
        elif isinstance(report, WorkerReport):
            self._record_report(report.report)
        elif isinstance(report, Exited):
            self._end_worker(report)
        elif isinstance(report, Stopped):
            if report.stopped:
                self._stopped.stops(report.rank, time.monotonic())
            else:
                self._stopped.goes_on(report.rank)
        elif isinstance(report, Result):
            self._results.setdefault(report.rank, bytearray()).extend(report.data)
        elif isinstance(report, Started):
            if not self._launched:
                self._launched = True
                self._uninitialized.started(time.monotonic())
            for number, pid in report.pids:
                self._log(f"{self._who(number)} has pid {pid}")
        else:
            self._hosts.take(agent, report)

    def _record_report(self, line: bytes) -> None:
        self.endings.record(line)
        reason = reasons.decode(line)
        if isinstance(reason, reasons.Ending) and reason.why == "own":
            self._do(self._membership.ending(reason.rank, time.monotonic()))

    def _show(self, report: Output) -> None:
        if self._chaos is not None and report.stream == 2:
            self._chaos.wrote(report.rank, report.data, time.monotonic())
        super()._show(report)

    def _end_worker(self, report: Exited) -> None:
        number = report.rank
        self._roster.end(number, report.status == 0)
        if self._chaos is not None and report.status != 0:
            self._chaos.failed(number, time.monotonic())
        self._bury(number)
        tail = self._screen.tail(number)
        self.endings.end(report, tail)
        self._log(f"{self._who(number)} ended: {report.error or describe_status(report.status)}")
        if self._stopping:
            return
        how = report.error or describe_status(report.status) + first_failure.exception_in_brackets(tail)
        victim = self.endings.suffers(number)
        self._do(self._membership.exited(number, report.status == 0, time.monotonic(), victim, how))

    def _bury(self, number: int) -> None:
        """Release the resources of a worker whose process has exited or whose host is lost."""
        try:
            self._screen.finish(number)
        except RankFileError as error:
            self._watch.fail(str(error))
        self._hosts.ended(number)
        self._stopped.goes_on(number)
        self._server.on_exit(number)

    def _forget(self, number: int) -> None:
        """Delete the records of a worker that has exited, if they are no longer needed."""
        self.endings.forget([number])
        self._screen.forget(number)
        self._results.pop(number, None)

    def _who(self, number: int) -> str:
        rank = self._roster.rank_of(number)
        return f"{'new worker' if rank is None else 'rank'} {number if rank is None else rank}"

    def _do(self, actions: list[Action]) -> None:
        if not self._stopping:
            self._server.do(actions)

    def _act(self, action: Spawn | Form | Kill | Abandon | Show | End) -> None:
        if isinstance(action, Spawn):
            self._spawn(action)
        elif isinstance(action, Form):
            self._form(action)
        elif isinstance(action, Kill):
            self._hosts.kill(action.worker)
        # If the abandoned process exits after all, `_end_worker` removes the worker's remaining records.
        elif isinstance(action, Abandon):
            self._roster.end(action.worker, False)
            self._stopped.goes_on(action.worker)
        elif isinstance(action, Show):
            self._screen.log(action.text)
        elif self._end is None:
            self._end = action
            if action.success:
                self.stop(TERM_GRACE)
            else:
                victims = sum(self.endings.suffers(end.rank) for end in self.endings.ends)
                left = self._membership.workers.hold_state
                self._watch.fail(action.text + ("" if left else outside_run(victims)))

    def _form(self, action: Form) -> None:
        self._roster.form(action.places)
        self._watch.size = len(action.places)
        # Delete the records of exited workers. Otherwise, memory use would grow with each worker that joins and leaves.
        for number in [end.rank for end in self.endings.ends]:
            self._forget(number)

    def _foreseen(self, number: int) -> Slot | None:
        there = [worker for worker in self._membership.workers if worker.alive and not worker.leaves]
        return foreseen(candidates(there)).get(number)

    def _spawn(self, action: Spawn) -> None:
        self._roster.join(action.worker, action.host)
        try:
            self._screen.join(action.worker)
        except RankFileError as error:
            self._watch.fail(str(error))
            return
        self._log(f"{self._who(action.worker)} is started on host {action.host}")
        self._hosts.start(action.worker, action.host)
