"""Elastic job of external workers. It takes events, and starts and ends processes through `ProcessControl`.

`elastic.membership` decides which workers are members. Requests of workers arrive at the store, as with horovodrun.
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
from horovod.runner.job.membership_server import MembershipServer
from horovod.runner.job.roster import Roster


class ProcessControl(Protocol):
    """Operations that the cluster manager provides. No call blocks."""

    def start(self, number: int, host: str) -> None:
        """Start a process for this worker. When it ends, the caller must call `ExternalElasticJob.exited`."""

    def kill(self, number: int) -> None:
        """End the process of this worker."""

    def say(self, text: str) -> None:
        """Show a message to the user."""


class ExternalElasticJob:
    """State of an elastic job of external workers.

    Attributes:
        roster: Numbers, hosts and ranks of the workers.
        end: How the job ended; None while it runs.
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
        """Descriptor that becomes readable when `serve` must be called."""
        return self._front.fd

    def next_time(self) -> float | None:
        """Return the time at which `tick` must be called next (monotonic, s), or None."""
        self._due = self._membership.next_time(self._ticked)
        self._standstill.waits(self._due)
        return self._due

    def serve(self) -> None:
        """Handle the requests of workers."""
        self._server.serve(time.monotonic())

    def tick(self) -> None:
        """Act on deadlines that have passed. Call it first in each round of the loop."""
        now = time.monotonic()
        if stood := self._standstill.look(now):  # the driver itself was stopped, so no worker is late
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
            how: Description of how it ended, for messages.
            victim: True if the worker ended only because others failed.
        """
        self.roster.end(number, success)
        self._server.gone(number)
        self._do(self._membership.exited(number, success, time.monotonic(), victim, how))

    def lost(self, host: str) -> None:
        """Record that a host and all its workers are lost."""
        for worker in self._membership.workers:
            if worker.host == host:
                self.roster.end(worker.number, False)
                self._server.gone(worker.number)
        self._do(self._membership.host_lost(host, time.monotonic()))

    def alive(self, number: int) -> bool:
        """Return True until the end of the worker is recorded."""
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
