"""State machine that decides which workers are members of an elastic job. It performs no I/O.

Methods report an event with its time (monotonic, s), and return the actions to carry out. They never block. Workers are
identified by their numbers. `actions` lists the phases. The state machine follows these rules:

1. A new epoch is formed only when no worker runs in an earlier epoch. Each member must have returned or reported that
  it ends, or its process must have ended. The launcher kills a worker that does not return in time. It also kills a
  worker that other ranks have lost and that shows no sign of life.
2. A survivor is a member of the next epoch if its host has a slot for it and the job does not end.
3. New workers are started while the other workers continue. The members are notified when a new worker is ready to
  join.
4. While no epoch is running, there is always a deadline for the next decision, so no wait is unlimited.
5. A host on which a worker failed gets no new workers during a cooldown (`limits`). Survivors on this host stay.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from horovod.runner.elastic import actions, workers
from horovod.runner.elastic.actions import (
    ACCUSED,
    CERTAIN,
    LEAVING,
    Abandon,
    Action,
    Break,
    Dismiss,
    End,
    Form,
    Kill,
    Notify,
    Phase,
    Show,
    Spawn,
)
from horovod.runner.elastic.limits import Admission, Blacklist, Limits, Resets
from horovod.runner.elastic.workers import Life, MachineOf, Worker, Workers, candidates


class Membership:
    """State machine for the membership of an elastic job's workers.

    Attributes:
        epoch: Number of the last epoch that was formed, or 0 before the first.
        workers: All workers that have not exited.
    """

    def __init__(self, limits: Limits, blacklist: Blacklist, now: float, machine_of: MachineOf = str) -> None:
        self.phase = Phase.STARTING
        self.epoch = 0
        self.workers = Workers(machine_of)
        self.limits = limits
        self._names = limits.names
        self._blacklist = blacklist
        self._patience = limits.rejoin_seconds
        self._slots: dict[str, int] = {}
        self._complete = False
        # Remember which messages the user has seen, so that they are not repeated: whether "no hosts found" was shown,
        # and the slot count in the last "too few slots" message.
        self._reported_none, self._reported_slots = False, -1
        self._resets = Resets(limits.resets)
        # True once all members of an epoch have connected to each other
        self._ran = False
        # True if at least one worker is known to hold training state
        self._has_progress = False
        self._fresh = True  # True if no member of the last epoch held training state when the epoch was formed
        self._success = False
        # Start of the current period without a running epoch, or None while an epoch is running
        self._idle_since: float | None = now
        self._admission = Admission(limits.gather)
        self._reported_waiting = False
        self._last_members: set[int] = set()  # Members of the most recent epoch that started running
        self._out: list[Action] = []

    def next_time(self, now: float) -> float | None:
        """Return the next time (monotonic, s) at which the caller must call `tick`, or None if nothing is scheduled."""
        if self.phase is Phase.ENDED:
            return None
        times = [self.workers.next_deadline()]
        if self.phase is not Phase.FINISHING:
            times.append(self._blacklist.next_time(now))
            times.append(None if self._idle_since is None else self._idle_since + self.limits.timeout)
            times.append(self._admission.next_time(now))
        return min((at for at in times if at is not None), default=None)

    @property
    def members(self) -> list[Worker]:
        """Members of the last epoch that have not exited, in rank order."""
        return self.workers.members(self.epoch)

    def discovered(
        self, slots: Mapping[str, int], now: float, certain: bool = False, complete: bool = False, by: str = ""
    ) -> list[Action]:
        """Record the usable hosts, in order of preference.

        Args:
            slots: Number of slots on each host. An empty mapping is ignored unless `certain` is True.
            now: Current time (monotonic, s).
            certain: True if an empty mapping really means that no host is available.
            complete: True if no more hosts can be added later.
            by: Script that found the hosts, or an empty string if there is no script.
        """
        if not slots and not certain:
            if not self._reported_none:
                self._show(actions.no_host(by, self.workers.any_started))
            self._reported_none = True
            return self._decide(now)
        self._reported_none = False
        self._slots, self._complete = dict(slots), complete
        self.workers.fit(slots)
        return self._decide(now)

    def ready(self, number: int, now: float) -> list[Action]:
        """Record that a new worker is waiting in hvd.init() to join an epoch."""
        worker = self.workers.find(number)
        if worker is not None and worker.life is Life.STARTING:
            worker.life = Life.WAITING
            worker.clear_deadline()
        return self._decide(now)

    def refused(self, number: int, why: str, now: float) -> list[Action]:
        """Record that a new worker was rejected, and exclude its host. `why` is the reason."""
        worker = self.workers.find(number)
        if worker is not None and worker.life is Life.STARTING:
            worker.life = Life.WAITING
            self._failed(worker, now, f"refused: {why}")
            self._dismiss(worker, why, now)
        return self._decide(now)

    def formed(self, number: int, epoch: int, now: float) -> list[Action]:
        """Record that a member has connected to all other members of the epoch."""
        if (worker := self._member(number, epoch)) is not None and self.phase is Phase.FORMING:
            worker.formed = True
            if all(member.formed for member in self.workers if member.epoch == self.epoch):
                self._run()
        return self._decide(now)

    def back(
        self, number: int, epoch: int, now: float, lost: Collection[int] = (), holds: bool | None = None
    ) -> list[Action]:
        """Record that a member has left its epoch and waits for the next one.

        A member leaves its epoch if the epoch could not be formed, has lost a rank, or must change its members.

        Args:
            number: Number of the member.
            epoch: Epoch that the member has left.
            now: Current time (monotonic, s).
            lost: Numbers of the workers that the member considers lost.
            holds: True if the member holds the training state, False if it does not, None if unknown.
        """
        worker = self._member(number, epoch)
        if worker is not None:
            worker.life = Life.WAITING
            # If no member held training state when the epoch began, and this member holds none now, the job has none.
            if holds is not None:
                worker.holds, self._has_progress = holds, holds or (self._has_progress and not self._fresh)
            worker.clear_deadline()
            self._break(f"{worker} has left it", now)
            self._accuse(lost, now)
        return self._decide(now)

    def noticed_end(self, number: int, epoch: int, now: float, lost: Collection[int] = ()) -> list[Action]:
        """Record that a member has noticed that its epoch is over.

        The member is alive, but might still be computing.
        """
        worker = self._member(number, epoch)
        if worker is not None:
            worker.noticed_end = True
            worker.clear_deadline()
            self._break(f"{worker} has noticed its end", now)
            worker.expect(now + self._patience, actions.did_not_rejoin(self._patience))
            self._accuse(lost, now)
        return self._decide(now)

    def ending(self, number: int, now: float) -> list[Action]:
        """Record a member's report that it is exiting because of an exception.

        The other members do not wait for this worker to rejoin. Its process may continue to exist for a while.
        """
        worker = self._member(number, self.epoch)
        if worker is not None:
            worker.life = Life.ENDING
            worker.deadline, worker.why = now + self._patience, "it had announced its end, and did not end"
            self._break(f"{worker} ends", now, (number,))
        return self._decide(now)

    def accused(self, numbers: Collection[int], now: float, why: str) -> list[Action]:
        """Kill workers that the launcher has found to be stuck, for example because they were suspended for too long.

        The launcher can detect this before the other ranks do.
        """
        for number in numbers:
            if (worker := self.workers.find(number)) is not None:
                if self._member(number, self.epoch) is not None:
                    self._break(f"{worker}: {why}", now, tuple(numbers))
                worker.expect(now, why)
        return self._decide(now)

    def exited(
        self, number: int, success: bool, now: float, victim: bool = False, how: str = "it ended"
    ) -> list[Action]:
        """Record that a worker's process has exited.

        Args:
            number: Number of the worker.
            success: True if the exit code was 0.
            now: Current time (monotonic, s).
            victim: True if the worker reported that it ended only because other workers failed.
            how: How the worker exited, for messages.
        """
        worker = self.workers.find(number)
        if worker is not None:
            if success and not worker.dismissed and (worker.survivor or not self._has_progress):
                self._success = True
                self.phase = Phase.FINISHING
            elif not (worker.leaves or victim):
                self._failed(worker, now, f"killed, since {worker.why}" if worker.life is Life.KILLED else how)
            self._on_exit(worker, now)
        return self._decide(now)

    def host_lost(self, host: str, now: float) -> list[Action]:
        """Record that the agent of a host can no longer be reached. All workers on this host are lost."""
        lost = [worker for worker in self.workers if worker.host == host]
        if staying := [worker for worker in lost if not worker.leaves]:
            self._failed(staying[0], now, "its host is lost", lost)
        if working := tuple(worker.number for worker in lost if worker.life is Life.WORKING):
            self._break(f"host {host} is lost", now, working)
        for worker in lost:
            self._on_exit(worker, now)
        return self._decide(now)

    def tick(self, now: float) -> list[Action]:
        """Handle all deadlines that have passed."""
        return self._decide(now)

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, because the launcher was suspended for that long."""
        self.workers.postpone(seconds)
        self._idle_since = None if self._idle_since is None else self._idle_since + seconds
        self._admission.postpone(seconds)
        self._blacklist.postpone(seconds)

    def _member(self, number: int, epoch: int) -> Worker | None:
        """Return the worker if it is a member of `epoch` and `epoch` is the latest epoch. Otherwise, return None."""
        return self.workers.at_work(number, epoch) if epoch == self.epoch else None

    def _run(self) -> None:
        self.phase = Phase.RUNNING
        self._ran = self._has_progress = True
        self._idle_since, self._reported_waiting = None, False
        new = [member for member in self.members if not member.survivor]
        numbers = {member.number for member in self.members}
        if self._last_members and (message := actions.members(len(numbers), new, not self._last_members <= numbers)):
            self._show(message)
        self._last_members = numbers
        for member in self.members:
            member.survivor = member.holds = True

    def _break(self, why: str, now: float, lost: tuple[int, ...] = ()) -> None:
        """End the epoch, even if it is still forming.

        `lost` contains the numbers of the workers whose processes have exited or will be killed.
        """
        if self.phase not in (Phase.FORMING, Phase.RUNNING):
            return
        self._out.append(Break(self.epoch, why, lost))
        self.phase = Phase.GATHERING
        self._idle_since = now if self._idle_since is None else self._idle_since
        for member in self.workers.of(Life.WORKING):
            member.expect(now + self._patience, actions.did_not_rejoin(self._patience))

    def _accuse(self, lost: Collection[int], now: float) -> None:
        for number in lost:
            if (worker := self._member(number, self.epoch)) is not None and not worker.noticed_end:
                worker.expect(now + ACCUSED, "other ranks have lost it, and it does not respond")

    def _failed(self, worker: Worker, now: float, how: str, lost: Sequence[Worker] = ()) -> None:
        """Report that a worker failed, and exclude its host.

        `lost` contains all workers that were lost in the same failure.
        """
        if self.phase is Phase.FINISHING:
            return
        barred = self._blacklist.bars(worker.host, now)
        away = self._blacklist.failed(worker.host, now)
        self._show(
            f"{worker} failed: {how}{actions.remaining(self.workers, [worker, *lost], self.limits.least, self._names)}"
        )
        # Do not report the exclusion of a part of a machine, such as a lost Spark task, because it never returns.
        if not barred and not (lost and worker.machine != worker.host):
            self._show(f"host {worker.host} gets no new workers{'' if away == math.inf else f' for {away:.0f} s'}")

    def _on_exit(self, worker: Worker, now: float) -> None:
        belongs = worker.life is Life.WORKING and worker.epoch == self.epoch
        self.workers.remove(worker)
        if belongs:
            self._break(f"{worker} is gone", now, (worker.number,))

    def _show(self, text: str) -> None:
        self._out.append(Show(text))

    def _end(self, success: bool, text: str = "") -> None:
        self.phase = Phase.ENDED
        self._out.append(End(success, text))

    def _decide(self, now: float) -> list[Action]:
        if self.phase is not Phase.ENDED:
            self._enforce_deadlines(now)
            if self.phase is Phase.FINISHING:
                self._finish(now)
            else:
                self._spawn(now)
                if self._ran:  # Before the first epoch, the job's elastic timeout limits the start of workers.
                    silent = actions.silent(self.limits.timeout, self._names)
                    self.workers.expect_starts(now, self.limits.timeout, silent)
                self._go_on(now)
        out, self._out = self._out, []
        return out

    def _enforce_deadlines(self, now: float) -> None:
        for worker in self.workers:
            if worker.deadline is None or now < worker.deadline:
                continue
            if worker.life is Life.KILLED:
                self._out.append(Abandon(worker.number))
                self._failed(worker, now, "it did not end after SIGKILL and was abandoned")
                self._on_exit(worker, now)
            else:
                self._kill(worker, now, worker.why)

    def _kill(self, worker: Worker, now: float, why: str) -> None:
        self._out.append(Kill(worker.number, why))
        if worker.life is Life.WORKING:
            self._break(f"{worker} is killed", now, (worker.number,))
        worker.life = Life.KILLED
        worker.deadline, worker.why = now + CERTAIN, why

    def _spawn(self, now: float) -> None:
        usable = self._blacklist.usable(self._slots, now)
        slots = sum(usable.values()) + self.workers.outside(usable)
        if not self._ran and slots < self.limits.start:
            if slots != self._reported_slots and (usable or not self.workers.any_started):
                self._show(actions.too_few_slots(slots, self.limits.start, len(usable)))
            self._reported_slots = slots
            return
        if self._resets.used_up and self.workers.survivors >= self.limits.least:
            # Do not start a worker, because the change of members would exceed the reset limit and end the job.
            return
        room = None if self.limits.max_size is None else max(0, self.limits.max_size - self.workers.staying)
        for host in workers.free_slots(usable, self.workers.used_slots())[:room]:
            self._out.append(Spawn(self.workers.add(host, self.epoch == 0).number, host))

    def _go_on(self, now: float) -> None:
        self._let_go(now)
        waiting = [worker for worker in self.workers.of(Life.WAITING) if not worker.leaves]
        together = self._admission.may_join(waiting, bool(self.workers.of(Life.STARTING)), now)
        busy = self.workers.of(Life.WORKING, Life.KILLED)
        remaining = math.inf if self._idle_since is None else self._idle_since + self.limits.timeout - now
        if not (self.workers.hold_state if self._has_progress else self.workers or not self.workers.any_started):
            self._end(
                False, "no worker is left" + (" that holds the state of the training" if self._has_progress else "")
            )
        elif self.phase is Phase.RUNNING:
            self._notify(bool(waiting) and together)
        elif self.phase is not Phase.FORMING and self._may_form(waiting, together):
            self._form(waiting)
        elif now >= (hopeless := self._hopeless_at(len(waiting), now)):
            self._end(
                False,
                actions.hopeless(self._blacklist.barred(self._slots, now), len(waiting), self._needed, self._names),
            )
        elif remaining <= 0:
            self._end(
                False, actions.too_long(self.workers, len(waiting), self._needed, self.limits.timeout, self._names)
            )
        elif self.phase is Phase.GATHERING and not (self._reported_waiting or busy or hopeless < math.inf):
            self._show(actions.waiting(len(waiting), self.limits.least, remaining, self._names))
            self._reported_waiting = True

    def _let_go(self, now: float) -> None:
        """Dismiss waiting workers that have lost their slots.

        Members that are training are notified by `_notify` instead.
        """
        for worker in [one for one in self.workers.of(Life.WAITING, Life.STARTING) if one.leaves and not one.dismissed]:
            if worker.life is Life.STARTING:
                self._kill(worker, now, "its host has no slot for it any more")
            else:
                self._dismiss(worker, "its host has no slot for it any more", now)

    def _dismiss(self, worker: Worker, why: str, now: float) -> None:
        self._out.append(Dismiss(worker.number, why))
        worker.leaves = worker.dismissed = True
        worker.expect(now + LEAVING, "it has been removed from the job and told to end, and does not")

    def _notify(self, somebody_waits: bool) -> None:
        working = self.workers.of(Life.WORKING)
        staying = [worker for worker in working if not worker.leaves]
        added = somebody_waits and self.limits.has_room(len(staying)) and not self._resets.used_up
        if update := self._admission.update(added, removed=len(staying) < len(working)):
            self._out.append(Notify(self.epoch, update))

    @property
    def _needed(self) -> int:
        return self.limits.least if self._ran else self.limits.start

    def _hopeless_at(self, waiting: int, now: float) -> float:
        """Return the time after which the job can no longer get enough workers, or infinity."""
        if waiting >= self._needed or self.workers.of(Life.STARTING, Life.WORKING, Life.ENDING, Life.KILLED):
            return math.inf
        free = workers.free_slots(self._blacklist.usable(self._slots, now), self.workers.used_slots())
        full = self._complete and waiting + len(free) < self._needed
        return self._blacklist.closes_at(self._slots, full, now)

    def _may_form(self, waiting: list[Worker], ready: bool) -> bool:
        if self.workers.of(Life.WORKING, Life.KILLED):
            return False
        if not self._ran:
            return len(waiting) >= self.limits.start and ready
        return len(waiting) >= self.limits.least and (not self._has_progress or any(worker.holds for worker in waiting))

    def _form(self, waiting: list[Worker]) -> None:
        if self._ran and self._resets.used_up and self._last_members <= {worker.number for worker in waiting}:
            # The limit on membership changes is reached, so leave out new workers and keep the previous members.
            waiting = [worker for worker in waiting if worker.number in self._last_members]
        ordered = workers.choose(candidates(waiting), self.limits.max_size, self.workers.machines(self._slots))
        places = workers.places(ordered)
        if self._ran and places.keys() != self._last_members:
            if self._resets.used_up:
                return self._end(False, actions.too_many_changes(self._resets.count, self._names))
            self._resets.count += 1
        self.epoch += 1
        self._fresh = not any(worker.holds for worker in waiting)
        for worker in self.workers:
            worker.first = False
            if worker.number in places:
                worker.life, worker.epoch, worker.rank = Life.WORKING, self.epoch, places[worker.number].rank
                worker.formed = worker.noticed_end = False
        self.phase = Phase.FORMING
        self._admission.formed()
        self._out.append(Form(self.epoch, places))

    def _finish(self, now: float) -> None:
        """Dismiss all waiting workers, because a worker has succeeded.

        Workers that are still training finish on their own. If no epoch has been running, workers that have not called
        hvd.init() also continue, because the program might not use Horovod.
        """
        for worker in self.workers:
            if worker.life is Life.STARTING and self._ran:
                self._kill(worker, now, "the job is over")
            elif worker.life is Life.WAITING and not worker.dismissed:
                self._dismiss(worker, "the job is over: another worker has ended with success", now)
        if not self.workers:
            self._end(self._success)
