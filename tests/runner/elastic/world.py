"""A simulated cluster that executes a membership's decisions, with events chosen by a test."""

from dataclasses import dataclass

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.elastic.actions import Action, Break, Dismiss, End, Form, Kill, Notify, Phase, Show, Spawn
from horovod.runner.elastic.limits import Blacklist, Limits
from horovod.runner.elastic.membership import Membership
from horovod.runner.plan.hosts import Slot


@dataclass
class Process:
    """The actual state of a process, which the membership may not know."""

    host: str
    state: str = "starting"  # ready, works, waits
    epoch: int = 0
    place: Slot | None = None
    stopped: bool = False  # SIGSTOP
    immortal: bool = False  # SIGKILL does not end it
    dismissed: bool = False
    notified: bool = False  # informed that its epoch is over
    holds: bool = False  # has the training state


class World:
    """Drives a `Membership`, and checks all invariants at each action."""

    def __init__(
        self,
        start: int = 4,
        least: int = 2,
        most: int | None = 8,
        cooldown: tuple[float, float] | None = None,
        resets: int | None = None,
        timeout: float = 600.0,
        names: Names = FLAGS,
        gather: float | None = None,
    ) -> None:
        self.now = 0.0
        self.limits = Limits(start, least, most, resets, timeout, gather=gather, names=names)
        self.membership = Membership(self.limits, Blacklist(cooldown, seed=1), self.now)
        self.processes: dict[int, Process] = {}
        self.hosts: dict[str, int] = {}
        self.lost_hosts: set[str] = set()
        self.messages: list[str] = []
        self.done: list[Action] = []
        self.end: End | None = None
        self.ranks: dict[int, int] = {}  # of the last epoch that ran, by worker
        self.trained = False  # all members of an epoch have had the state once, so they may have continued with it
        self.killed: list[int] = []  # their end is not known to the membership yet

    # Events

    def discover(self, *, complete: bool = False, **hosts: int) -> None:
        self.hosts = hosts or self.hosts
        self.act(self.membership.discovered(hosts, self.now, complete=complete))

    def refuse(self, number: int, reason: str) -> None:
        self.processes[number].state = "waits"
        self.act(self.membership.refused(number, reason, self.now))

    def ready(self, *numbers: int) -> None:
        for number in numbers or tuple(n for n, p in self.processes.items() if p.state == "starting"):
            self.processes[number].state = "waits"
            self.act(self.membership.ready(number, self.now))

    def form(self, synced: bool = True) -> None:
        """Connect all members of the epoch; then all or none of them get the state."""
        members = self.working()
        for number in members:
            self.act(self.membership.formed(number, self.membership.epoch, self.now))
        if self.membership.phase is Phase.RUNNING:
            self.ranks = {number: self.processes[number].place.rank for number in members}
            if synced:
                self.sync(*members)

    def sync(self, *numbers: int) -> None:
        """Give these members the state, or the initial state that all of them share."""
        for number in numbers:
            self.processes[number].holds = True
        self.trained = self.trained or all(self.processes[number].holds for number in self.running())

    def back(self, *numbers: int, lost: tuple[int, ...] = ()) -> None:
        for number in numbers:
            process = self.processes[number]
            process.state = "waits"
            self.act(self.membership.back(number, process.epoch, self.now, lost, process.holds))

    def noticed_end(self, number: int, lost: tuple[int, ...] = ()) -> None:
        self.act(self.membership.noticed_end(number, self.processes[number].epoch, self.now, lost))

    def ending(self, number: int) -> None:
        self.processes[number].state = "ends"
        self.act(self.membership.ending(number, self.now))

    def exit(self, number: int, success: bool = False, victim: bool = False) -> None:
        del self.processes[number]
        self.act(self.membership.exited(number, success, self.now, victim))

    def lose(self, host: str) -> None:
        """Cut off a host: its processes live on until their agent ends them."""
        self.lost_hosts.add(host)
        for number in [n for n, p in self.processes.items() if p.host == host]:
            del self.processes[number]
        self.act(self.membership.host_lost(host, self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass, and call the membership at its deadlines."""
        until = self.now + seconds
        for _ in range(1000):
            at = self.membership.next_time(self.now)
            if at is None or at > until:
                break
            self.now = max(self.now, at)
            self.act(self.membership.tick(self.now))
        else:
            raise AssertionError("it wishes to be called again and again")
        self.now = until
        self.act(self.membership.tick(self.now))

    # Current state

    def working(self) -> list[int]:
        return sorted(
            (n for n, p in self.processes.items() if p.state == "works"), key=lambda n: self.processes[n].place.rank
        )

    def waiting(self) -> list[int]:
        return [n for n, p in self.processes.items() if p.state == "waits" and not p.dismissed]

    def running(self) -> list[int]:
        """Return the workers by rank, or nothing while no epoch runs."""
        return self.working() if self.membership.phase is Phase.RUNNING else []

    # Decisions

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.end is None, f"{action} after the end"
            self.done.append(action)
            self._act(action)
        while self.killed and self.end is None:
            number = self.killed.pop(0)
            if number in self.processes and not self.processes[number].immortal:
                self.exit(number)

    def _act(self, action: Action) -> None:
        if isinstance(action, Spawn):
            self._spawn(action)
        elif isinstance(action, Form):
            self._form(action)
        elif isinstance(action, Break):
            assert action.epoch <= self.membership.epoch
            for process in self.processes.values():
                process.notified = process.notified or process.epoch == action.epoch
        elif isinstance(action, Notify):
            assert self.membership.phase is Phase.RUNNING
        elif isinstance(action, Dismiss):
            assert self.processes[action.worker].state == "waits", "only who waits hears it"
            self.processes[action.worker].dismissed = True
        elif isinstance(action, Kill):
            self.killed.append(action.worker)
        elif isinstance(action, Show):
            self.messages.append(action.text)
        elif isinstance(action, End):
            self.end = action

    def _spawn(self, action: Spawn) -> None:
        assert action.worker not in self.processes, "numbers are never used again"
        on_host = [p for p in self.processes.values() if p.host == action.host and not p.immortal]
        assert len(on_host) < self.hosts.get(action.host, 0), "more processes than slots"
        self.processes[action.worker] = Process(action.host)

    def _form(self, action: Form) -> None:
        places = action.places
        still = [n for n, p in self.processes.items() if p.state == "works" and not p.immortal]
        assert not still, f"epoch {action.epoch} begins while {still} work in an earlier one"
        assert all(self.processes[n].state == "waits" and not self.processes[n].dismissed for n in places)
        assert self.limits.max_size is None or len(places) <= self.limits.max_size
        assert len(places) >= (self.limits.least if self.ranks else self.limits.start)
        assert sorted(place.rank for place in places.values()) == list(range(len(places)))
        before = [n for n in sorted(places, key=lambda n: places[n].rank) if self.processes[n].holds]
        assert before or not self.trained, "somebody holds the state"
        if before:
            assert places[before[0]].rank == 0, "rank 0 holds the state"
            ranks = [self.ranks[n] for n in before if n in self.ranks]
            assert ranks == sorted(ranks), "survivors keep order"
        for host in {place.hostname for place in places.values()}:
            local = sorted((p.rank, p.local_rank, p.local_size) for p in places.values() if p.hostname == host)
            assert [entry[1] for entry in local] == list(range(len(local)))
            assert {entry[2] for entry in local} == {len(local)}
            assert local[-1][0] - local[0][0] == len(local) - 1, "ranks of a host follow one another"
        for number, place in places.items():
            process = self.processes[number]
            assert process.host == place.hostname
            process.state, process.epoch, process.place, process.notified = "works", action.epoch, place, False


def started(world: World, **hosts: int) -> World:
    """Return a world in which all slots are in use and epoch 1 runs."""
    world.discover(**hosts)
    world.ready()
    world.form()
    assert world.membership.phase is Phase.RUNNING
    return world


def actions_of(world: World, kind: type) -> list:
    return [action for action in world.done if isinstance(action, kind)]
