"""Membership of an elastic job under random events. `World` checks the invariants at each action."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Step
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horovod.runner.elastic.actions import Phase
from tests.runner.elastic.world import World

# A short version for test runs; set ELASTIC_EXAMPLES=20000 for a longer one.
EXAMPLES = int(os.environ.get("ELASTIC_EXAMPLES", "60"))
HOSTS = "abcd"

slots = st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 3), max_size=4)
some = st.integers(0, 10**6)


class Members(RuleBasedStateMachine):
    world: World

    @initialize(
        limits=st.tuples(st.integers(1, 3), st.integers(0, 3), st.none() | st.integers(0, 3)),
        cooldown=st.none() | st.just((1, 8)),
        resets=st.none() | st.integers(0, 6),
        hosts=slots,
    )
    def begin(self, limits, cooldown, resets, hosts):
        least, more, room = limits
        start = least + more
        self.world = World(start, least, None if room is None else start + room, cooldown, resets, timeout=60.0)
        self.world.discover(**hosts)

    @property
    def over(self) -> bool:
        return self.world.end is not None

    def pick(self, number: int, *states: str) -> int | None:
        """Return one of the processes in these states that can act."""
        alive = [n for n, p in self.world.processes.items() if p.state in states and not (p.stopped or p.immortal)]
        return alive[number % len(alive)] if alive else None

    @precondition(lambda self: not self.over)
    @rule(hosts=slots)
    def discovered(self, hosts):
        self.world.discover(**{host: n for host, n in hosts.items() if n})

    @precondition(lambda self: not self.over)
    @rule(one=some)
    def ready(self, one):
        if (number := self.pick(one, "starting")) is not None:
            self.world.ready(number)

    @precondition(lambda self: not self.over)
    @rule()
    def all_are_ready(self):
        for number in [n for n, p in self.world.processes.items() if p.state == "starting"]:
            process = self.world.processes.get(number)
            if process is not None and not (process.stopped or process.immortal or self.over):
                self.world.ready(number)

    @precondition(lambda self: not self.over and self.world.membership.phase is Phase.FORMING)
    @rule(synced=st.booleans())
    def formed(self, synced):
        if not any(self.world.processes[number].stopped for number in self.world.working()):
            self.world.form(synced)

    @precondition(lambda self: not self.over and self.world.running())
    @rule(one=some)
    def synced(self, one):
        if (number := self.pick(one, "works")) is not None:
            self.world.sync(number)

    @precondition(lambda self: not self.over)
    @rule(one=some, accused=st.none() | some)
    def back(self, one, accused):
        if (number := self.pick(one, "works")) is not None:
            members = self.world.working()
            lost = () if accused is None else (members[accused % len(members)],)
            self.world.back(number, lost=lost)

    @precondition(lambda self: not self.over)
    @rule()
    def all_come_back(self):
        epoch = self.world.membership.epoch
        for number in self.world.working():
            process = self.world.processes.get(number)
            alive = process is not None and process.state == "works" and not (process.stopped or process.immortal)
            if alive and process.epoch == epoch and not self.over:
                self.world.back(number)

    @precondition(lambda self: not self.over)
    @rule(one=some)
    def notices(self, one):
        if (number := self.pick(one, "works")) is not None:
            self.world.noticed_end(number)

    @precondition(lambda self: not self.over)
    @rule(one=some)
    def says_that_it_ends(self, one):
        if (number := self.pick(one, "works")) is not None:
            self.world.ending(number)

    @precondition(lambda self: not self.over)
    @rule(one=some)
    def stopped(self, one):
        if (number := self.pick(one, "works", "starting", "waits")) is not None:
            self.world.processes[number].stopped = True

    @precondition(lambda self: not self.over)
    @rule(one=some, outcome=st.sampled_from(["fails", "fails", "fails", "victim", "cannot be killed", "ends well"]))
    def exits(self, one, outcome):
        if (number := self.pick(one, "works", "starting", "waits", "ends")) is None:
            return
        if outcome == "cannot be killed":
            self.world.processes[number].immortal = True
        elif outcome != "ends well" or self.world.processes[number].state == "works":
            self.world.exit(number, success=outcome == "ends well", victim=outcome == "victim")

    @precondition(lambda self: not self.over)
    @rule(host=st.sampled_from(HOSTS))
    def host_is_lost(self, host):
        self.world.lose(host)

    @precondition(lambda self: not self.over)
    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def time_passes(self, seconds):
        self.world.wait(seconds)

    @precondition(lambda self: not self.over)
    @rule(epoch=st.integers(-3, 0), one=st.integers(0, 12))
    def late_messages(self, epoch, one):
        """Send messages of workers that have ended, or about past epochs."""
        membership, now = self.world.membership, self.world.now
        process = self.world.processes.get(one)
        number = membership.epoch + epoch
        if process is None or process.epoch != number:
            self.world.act(membership.back(one, number, now))
            self.world.act(membership.formed(one, number, now))
            self.world.act(membership.noticed_end(one, number, now))

    @precondition(lambda self: self.over)
    @rule()
    def job_is_over(self):
        """Hypothesis requires that at least one rule always applies."""

    @invariant()
    def progress_is_possible(self):
        """Check that no state waits without end: each has a next deadline, or a worker that trains or must end."""
        if not hasattr(self, "world") or self.over:
            return
        membership = self.world.membership
        if membership.phase is Phase.RUNNING:
            assert self.world.working()
        elif membership.phase is Phase.FINISHING:
            assert self.world.processes
        else:
            assert membership.next_time(self.world.now) is not None

    def teardown(self):
        """From now on all processes behave well; check that the job then trains or ends."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for _ in range(40):
            if self.over or world.membership.phase is Phase.RUNNING:
                break
            self.all_are_ready()
            if world.membership.phase is Phase.FORMING and all(
                not world.processes[n].stopped and not world.processes[n].immortal for n in world.working()
            ):
                world.form()
                continue
            if world.membership.phase is Phase.FORMING:
                # Connecting workers time out on a stopped one, and report it.
                alive = [n for n in world.working() if not (world.processes[n].stopped or world.processes[n].immortal)]
                silent = tuple(n for n in world.working() if n not in alive)
                if alive:
                    world.back(alive[0], lost=silent)
            notified = [n for n, p in world.processes.items() if p.state == "works" and p.notified]
            for number in notified:
                process = world.processes.get(number)
                if self.over or process is None or process.state != "works" or process.stopped or process.immortal:
                    continue
                world.back(number)
            for number in [
                n for n, p in world.processes.items() if (p.dismissed or p.state == "ends") and not p.stopped
            ]:
                if not self.over:
                    world.exit(number)
            if world.membership.phase is Phase.FINISHING:
                for number in list(world.processes):
                    if not self.over and number in world.processes:
                        world.exit(number, success=True)
            if not self.over and world.membership.phase is not Phase.RUNNING:
                world.wait(5.0)
        assert self.over or world.membership.phase is Phase.RUNNING, world.membership.phase


TestMembers = Members.TestCase
TestMembers.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    derandomize="ELASTIC_EXAMPLES" not in os.environ,
    phases=(Step.generate, Step.shrink),
    suppress_health_check=list(HealthCheck),
)
