"""Elastic job whose workers are started by another system through `ProcessControl`.

`elastic.membership` decides which workers are members. The workers' requests arrive at the job's store, as with
horovodrun.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from horovod.common.store.membership import MembershipControl
from horovod.runner.elastic.actions import Abandon, Action, End, Form, Kill, Say, Spawn, Standstill
from horovod.runner.elastic.admission import Newcomers
from horovod.runner.elastic.limits import Blacklist, Limits
from horovod.runner.elastic.membership import Membership
from horovod.runner.elastic.workers import MachineOf
from horovod.runner.job.membership_server import MembershipServer, Roster


class ProcessControl(Protocol):
    """Interface of the system that starts and ends worker processes. No method blocks."""

    def start(self, number: int, host: str) -> None:
        """Start a process for a worker. The caller must call `ExternalElasticJob.exited` when this process ends."""

    def kill(self, number: int) -> None:
        """End the process of a worker."""

    def say(self, text: str) -> None:
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
        front: MembershipControl,
        processes: ProcessControl,
        environ: Mapping[str, str],
        machine_of: MachineOf = str,
    ) -> None:
        self.roster = Roster()
        self.end: End | None = None
        self._processes = processes
        self._front = front
        self._membership = Membership(limits, Blacklist(cooldown), time.monotonic(), machine_of)
        self._server = MembershipServer(front, self._membership, self._act, Newcomers.wanted(environ))
        self._ticked = time.monotonic()
        self._due: float | None = None
        self._standstill = Standstill(time.monotonic())

    @property
    def fd(self) -> int:
        """Descriptor that is readable when the caller must call `serve`."""
        return self._front.fd

    def next_time(self) -> float | None:
        """Return the time (monotonic, s) at which the caller must call `tick`, or None."""
        self._due = self._membership.next_time(self._ticked)
        self._standstill.waits(self._due)
        return self._due

    def serve(self) -> None:
        """Handle the requests that workers have sent."""
        self._server.serve(time.monotonic())

    def tick(self) -> None:
        """Act on deadlines that have passed. The caller must call this first in each round of its loop."""
        now = time.monotonic()
        if stood := self._standstill.look(now):  # If the driver itself was stopped, no worker is late.
            self._membership.postpone(stood)
        if self._due is not None and now >= self._due:
            self._ticked = now
            self._do(self._membership.tick(now))

    def found(self, slots: Mapping[str, int]) -> None:
        """Set the current number of slots of each host."""
        self._do(self._membership.discovered(slots, time.monotonic()))

    def exited(self, number: int, success: bool, how: str, victim: bool = False) -> None:
        """Record that the process of a worker has ended or left the job.

        Args:
            number: Number of the worker.
            success: True if it ended normally.
            how: Description of the end, for messages.
            victim: True if the worker ended only because other workers failed.
        """
        self.roster.end(number, success)
        self._server.gone(number)
        self._do(self._membership.exited(number, success, time.monotonic(), victim, how))

    def lost(self, host: str) -> None:
        """Record that a host is lost, together with all its workers."""
        for worker in self._membership.workers:
            if worker.host == host:
                self.roster.end(worker.number, False)
                self._server.gone(worker.number)
        self._do(self._membership.host_lost(host, time.monotonic()))

    def alive(self, number: int) -> bool:
        """Return True if the end of the worker has not been recorded yet."""
        return self._membership.workers.find(number) is not None

    def _do(self, actions: list[Action]) -> None:
        if self.end is None:
            self._server.do(actions)

    def _act(self, action: Spawn | Form | Kill | Abandon | Say | End) -> None:
        if isinstance(action, Spawn):
            self.roster.join(action.worker, action.host)
            self._processes.start(action.worker, action.host)
        elif isinstance(action, Form):
            self.roster.form(action.places)
        elif isinstance(action, Kill):
            self._processes.kill(action.worker)
        elif isinstance(action, Abandon):
            self.roster.end(action.worker, False)
        elif isinstance(action, Say):
            self._processes.say(action.text)
        elif self.end is None:
            self.end = action
