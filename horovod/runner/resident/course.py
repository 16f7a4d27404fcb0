"""An elastic job of residents, decided: what happens is told to it, what is to be done it asks of `Hands`. Who is in
the job decides `elastic.membership`; what workers say comes by the store's desk, as in jobs of horovodrun."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from horovod.common.store.front import Front
from horovod.runner.elastic.actions import Abandon, Action, End, Form, Kill, Say, Spawn
from horovod.runner.elastic.cooldown import Blacklist
from horovod.runner.elastic.limits import Limits
from horovod.runner.elastic.membership import Membership
from horovod.runner.elastic.newcomers import Newcomers
from horovod.runner.elastic.phases import Standstill
from horovod.runner.elastic.workers import MachineOf
from horovod.runner.job.membership_desk import MembershipDesk
from horovod.runner.job.roster import Roster


class Hands(Protocol):
    """What the cluster manager is asked to do. Nothing waits."""

    def start(self, number: int, host: str) -> None:
        """A process for the worker of this number; its end will be told by `Course.exited`."""

    def kill(self, number: int) -> None:
        """End its process."""

    def say(self, text: str) -> None:
        """To whoever watches the job."""


class Course:
    """`front`: of the job's store. `roster`: who is who; `end`: how the job has ended, None: it runs."""

    def __init__(
        self,
        limits: Limits,
        cooldown: tuple[float, float] | None,
        front: Front,
        hands: Hands,
        environ: Mapping[str, str],
        machine_of: MachineOf = str,
    ) -> None:
        self.roster = Roster()
        self.end: End | None = None
        self._hands = hands
        self._front = front
        self._membership = Membership(limits, Blacklist(cooldown), time.monotonic(), machine_of)
        self._desk = MembershipDesk(front, self._membership, self._act, Newcomers.wanted(environ))
        self._ticked = time.monotonic()
        self._due: float | None = None
        self._standstill = Standstill(time.monotonic())

    @property
    def fd(self) -> int:
        """When it can be read, `serve` has something to do."""
        return self._front.fd

    def next_time(self) -> float | None:
        """When `tick` has something to do (monotonic, s)."""
        self._due = self._membership.next_time(self._ticked)
        self._standstill.waits(self._due)
        return self._due

    def serve(self) -> None:
        """Workers have said something."""
        self._desk.serve(time.monotonic())

    def tick(self) -> None:
        """To be called first, whenever the loop goes on."""
        now = time.monotonic()
        if stood := self._standstill.look(now):  # the driver itself was stopped, which makes nobody late
            self._membership.postpone(stood)
        if self._due is not None and now >= self._due:
            self._ticked = now
            self._do(self._membership.tick(now))

    def found(self, slots: Mapping[str, int]) -> None:
        """Slots by host, as they are now."""
        self._do(self._membership.discovered(slots, time.monotonic()))

    def exited(self, number: int, success: bool, how: str, victim: bool = False) -> None:
        """The worker's process is gone, or done with the job. `how`, in words; `victim`: because others have failed."""
        self.roster.end(number, success)
        self._desk.gone(number)
        self._do(self._membership.exited(number, success, time.monotonic(), victim, how))

    def lost(self, host: str) -> None:
        """The host is gone, with all that ran there."""
        for worker in self._membership.workers:
            if worker.host == host:
                self.roster.end(worker.number, False)
                self._desk.gone(worker.number)
        self._do(self._membership.host_lost(host, time.monotonic()))

    def alive(self, number: int) -> bool:
        """Is the worker's end still to be told?"""
        return self._membership.workers.find(number) is not None

    def _do(self, actions: list[Action]) -> None:
        if self.end is None:
            self._desk.do(actions)

    def _act(self, action: Spawn | Form | Kill | Abandon | Say | End) -> None:
        if isinstance(action, Spawn):
            self.roster.join(action.worker, action.host)
            self._hands.start(action.worker, action.host)
        elif isinstance(action, Form):
            self.roster.form(action.places)
        elif isinstance(action, Kill):
            self._hands.kill(action.worker)
        elif isinstance(action, Abandon):
            self.roster.end(action.worker, False)
        elif isinstance(action, Say):
            self._hands.say(action.text)
        elif self.end is None:
            self.end = action
