"""Server that connects the membership of an elastic job to its workers, and records of the workers' state.

`MembershipServer` answers the requests that workers send to the job's store. `Roster` stores the hosts and ranks of the
workers. `StoppedWorkers` stores the workers that a signal has suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from horovod.common.contract.membership import Over, Place, Updated, encode
from horovod.common.store.membership import EndReported, JoinRequest, MembershipControl, RoundEnd
from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.elastic.actions import Abandon, Action, Break, Dismiss, End, Form, Kill, Notify, Show, Spawn
from horovod.runner.elastic.limits import Newcomers
from horovod.runner.elastic.membership import Membership
from horovod.runner.plan.hosts import Slot

Others = Spawn | Form | Kill | Abandon | Show | End
"""Actions other than sending messages to workers."""


class MembershipServer:
    """Server that passes workers' requests to the membership, and its decisions to the workers. No call blocks."""

    def __init__(
        self,
        control: MembershipControl,
        membership: Membership,
        act: Callable[[Others], None],
        newcomers: Newcomers | None = None,
    ) -> None:
        """Connect the store's queue of worker requests to a membership.

        Args:
            control: Queue of the workers' requests in the store.
            membership: State machine that decides which workers are members.
            act: Function that carries out the actions that send no message to a worker. If an epoch is formed, it is
                called before the workers are notified.
            newcomers: Check that decides which workers can join. By default, versions of horovod and Python must be
                equal.
        """
        self._newcomers = newcomers if newcomers is not None else Newcomers()
        self._control = control
        self._membership = membership
        self._act = act
        # Maps the number of the last epoch to its workers' numbers, in rank order.
        self._members: dict[int, list[int]] = {}
        # Maps a store group's name, `formed N`, to its epoch. The epoch is complete once all workers are in the group.
        self._rounds: dict[str, int] = {}
        # Maps each epoch to the number N of its store group, `formed N`
        self._number_of: dict[int, int] = {}
        self._over: dict[int, str] = {}  # Maps the last epoch to the reason why it is over
        self._last_news = 0.0
        # Workers whose last request says that their state includes all changes since the last synchronization
        self._in_sync: set[int] = set()

    def serve(self, now: float) -> None:
        """Handle the requests of workers. Call this when `front.fd` is readable."""
        for message in self._control.take():
            if isinstance(message, JoinRequest) and self._membership.workers.find(message.worker) is None:
                self._control.refuse(message.worker, "the launcher has given it up")
            elif isinstance(message, JoinRequest):
                (self._in_sync.add if message.in_sync else self._in_sync.discard)(message.worker)
                if message.epoch == 0:
                    self._welcome(message, now)
                else:
                    self.do(self._membership.back(message.worker, message.epoch, now, message.lost, message.holds))
            elif isinstance(message, EndReported):
                self.do(self._membership.noticed_end(message.worker, message.epoch, now, message.lost))
                if message.blame and message.epoch == self._membership.epoch:
                    self.do(self._membership.accused([message.worker], now, message.blame))
            else:
                self._met(message, now)

    def _welcome(self, message: JoinRequest, now: float) -> None:
        result = self._newcomers.judge(message.facts)
        if result.refusal:
            self.do(self._membership.refused(message.worker, result.refusal, now))
            return
        if result.warning and (worker := self._membership.workers.find(message.worker)) is not None:
            self._act(Show(f"{worker}: {result.warning}"))
        self.do(self._membership.ready(message.worker, now))

    def _met(self, message: RoundEnd, now: float) -> None:
        if message.group.startswith("init e"):
            epoch = int(message.group.removeprefix("init e"))
            if epoch in self._members:  # Ignore a message about an earlier epoch.
                self._number_of[epoch] = message.round
                self._rounds[f"formed {message.round}"] = epoch
                # A worker of this epoch has exited, so make the others stop waiting for the epoch to form.
                if epoch in self._over:
                    self._fail_round(message.round, self._over[epoch])
        elif message.silent and (epoch := self._rounds.get(message.group, 0)):
            for worker in self._members[epoch]:
                self.do(self._membership.formed(worker, epoch, now))

    def on_exit(self, worker: int) -> None:
        """Record that a worker's process has exited."""
        self._in_sync.discard(worker)
        self._control.forget(worker)

    def do(self, actions: list[Action]) -> None:
        """Carry out the actions that the membership requests."""
        for action in actions:
            if isinstance(action, Form):
                self._act(action)
                self._form(action)
            elif isinstance(action, Break):
                self._break(action)
            elif isinstance(action, Notify):
                self._last_news += 1.0
                news = Updated(action.epoch, self._last_news, int(action.update))
                self._control.publish(self._members[action.epoch], encode(news))
            elif isinstance(action, Dismiss):
                self._control.refuse(action.worker, action.why)
            else:
                self._act(action)

    def _form(self, action: Form) -> None:
        workers = sorted(action.places, key=lambda worker: action.places[worker].rank)
        self._members = {action.epoch: workers}
        self._rounds, self._number_of, self._over = {}, {}, {}
        for worker in workers:
            slot = action.places[worker]
            place = Place(
                action.epoch,
                slot.rank,
                slot.size,
                slot.local_rank,
                slot.local_size,
                slot.cross_rank,
                slot.cross_size,
                workers,
                self._membership.limits.max_size,
                self._in_sync.issuperset(workers),
            )
            self._control.place(worker, encode(place))

    def _break(self, action: Break) -> None:
        """Tell all workers of an epoch that the epoch is over, even if it is still being formed."""
        if action.epoch in self._members:
            self._over[action.epoch] = action.why
        self._control.fail(f"init e{action.epoch}", action.why)
        number = self._number_of.get(action.epoch)
        if number is not None:
            self._fail_round(number, action.why)
        over = Over(action.epoch, action.why, list(action.lost))
        self._control.publish(self._members.get(action.epoch, []), encode(over))

    def _fail_round(self, number: int, why: str) -> None:
        self._control.set(f"failure {number}", why.encode())
        self._control.fail(f"formed {number}", why)


Result = TypeVar("Result")


class Roster:
    """Table of the job's workers by number. A worker keeps its number, but each epoch can change its rank.

    Attributes:
        hosts: Host of each worker that was ever started, by worker number.
        members: Worker numbers of the last epoch's members, in rank order.
    """

    def __init__(self) -> None:
        self.hosts: dict[int, str] = {}
        self._ranks: dict[int, int] = {}  # Rank of each worker in its last epoch, by worker number.
        self._failed: set[int] = set()
        self.members: list[int] = []

    def join(self, number: int, host: str) -> None:
        """Record that a worker has been started."""
        self.hosts[number] = host

    def end(self, number: int, success: bool) -> None:
        """Record that a worker's process has exited, or that its host is lost."""
        if not success:
            self._failed.add(number)

    def form(self, places: Mapping[int, Slot]) -> None:
        """Record the members of a new epoch and their slots."""
        self.members = sorted(places, key=lambda number: places[number].rank)
        self._ranks.update({number: slot.rank for number, slot in places.items()})

    def rank_of(self, number: int) -> int | None:
        """Return the worker's current or last rank, or None if it has never had a rank.

        Before the first epoch, the result is the worker's number, which is its expected rank.
        """
        return self._ranks.get(number) if self.members else number

    def ends(self, ends: Sequence[RankEnd]) -> list[RankEnd]:
        """Select the worker exits that decide the result of the job.

        Args:
            ends: Exits of all workers, with worker numbers as ranks.

        Returns:
            Exits of the last epoch's members, with their ranks in this epoch. If there was no epoch, all exits.
        """
        if not self.members:
            return list(ends)
        return [replace(end, rank=self._ranks[end.rank]) for end in ends if end.rank in self.members]

    @property
    def last_hosts(self) -> dict[int, str]:
        """Return a mapping from each rank of the last epoch to its host.

        If there was no epoch, the keys are worker numbers. Failed workers are omitted unless all workers have failed.
        """
        if not self.members:
            return {number: host for number, host in self.hosts.items() if number not in self._failed} or {**self.hosts}
        return {rank: self.hosts[number] for rank, number in enumerate(self.members)}

    def by_rank(self, results: Mapping[int, Result]) -> dict[int, Result]:
        """Return the results of the last epoch's members, keyed by rank.

        If there was no epoch, return all results, keyed by worker number.
        """
        if not self.members:
            return dict(results)
        return {rank: results[number] for rank, number in enumerate(self.members) if number in results}


class StoppedWorkers:
    """Workers that were suspended by a signal such as SIGSTOP. After a timeout, they are considered stuck.

    All times are in seconds on the monotonic clock, and are passed by the caller.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[int, float] = {}

    def stops(self, number: int, now: float) -> None:
        """Record that a worker was suspended by a signal."""
        self._since[number] = now

    def goes_on(self, number: int) -> None:
        """Record that a suspended worker is running again or has exited. Do nothing if it was not suspended."""
        self._since.pop(number, None)

    def next_time(self) -> float | None:
        """Return the earliest time at which a suspended worker exceeds the timeout, or None if none is suspended."""
        return min((since + self._timeout for since in self._since.values()), default=None)

    def take_late(self, now: float) -> list[int]:
        """Return the workers that have exceeded the timeout. Each worker is returned only once per timeout."""
        late = [number for number, since in self._since.items() if now >= since + self._timeout]
        self._since.update(dict.fromkeys(late, now))
        return late

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, because the launcher was suspended for that long."""
        self._since = {number: since + seconds for number, since in self._since.items()}
