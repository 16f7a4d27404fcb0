"""Membership of an elastic job: scenarios."""

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.elastic.actions import (
    ACCUSED,
    CERTAIN,
    LEAVING,
    Abandon,
    Break,
    Dismiss,
    Form,
    Kill,
    Notify,
    Phase,
    Show,
    Spawn,
)
from horovod.runner.elastic.limits import Blacklist, Limits
from horovod.runner.elastic.membership import Membership
from horovod.runner.elastic.workers import Workers
from tests.runner.elastic.world import World, actions_of, started


def test_the_job_starts_when_np_slots_and_all_workers_are_ready():
    world = World(start=4, most=6)
    world.discover(a=2)
    assert not actions_of(world, Spawn), "two slots do not do"
    world.discover(a=2)
    world.discover(a=1)
    assert world.messages == ["waiting for slots: 2 of 4, on 1 host", "waiting for slots: 1 of 4, on 1 host"]
    world.discover(a=2, b=5)
    assert [action.host for action in actions_of(world, Spawn)] == ["a", "a", "b", "b", "b", "b"], "max-np, not more"
    world.ready(0, 1, 2, 3)
    assert world.membership.phase is Phase.STARTING, "two more may be there in a moment"
    world.ready(4, 5)
    (form,) = actions_of(world, Form)
    assert form.epoch == 1
    assert [(place.rank, place.hostname, place.local_rank) for place in form.places.values()] == [
        (0, "a", 0),
        (1, "a", 1),
        (2, "b", 0),
        (3, "b", 1),
        (4, "b", 2),
        (5, "b", 3),
    ]
    world.form()
    assert world.running() == [0, 1, 2, 3, 4, 5]
    assert world.membership.next_time(world.now) is None, "while it trains nothing depends on the clock"


def test_survivors_continue_after_a_rank_dies():
    world = started(World(), a=4)
    world.exit(1)
    assert actions_of(world, Break)[0].epoch == 1
    world.back(0, 2)
    assert world.membership.phase is Phase.GATHERING, "rank 3 still computes"
    world.back(3)
    assert world.membership.phase is Phase.FORMING
    world.form()
    assert world.running() == [0, 2, 3]
    assert world.messages == [
        "rank 1 on host a failed: it ended; 3 ranks left",
        "host a gets no new workers",
        "going on with 3 ranks",
    ]
    assert world.now == 0.0, "nothing had to wait"


def test_mismatched_workers_are_dismissed_and_not_replaced():
    world = started(World(most=None), a=4)
    world.discover(a=4, b=1)
    world.refuse(4, "it has horovod 1, the job 2")
    (dismiss,) = actions_of(world, Dismiss)
    assert (dismiss.worker, dismiss.why) == (4, "it has horovod 1, the job 2")
    assert "new worker 4 on host b failed: refused: it has horovod 1, the job 2" in world.messages
    assert "host b gets no new workers" in world.messages
    world.exit(4)
    world.discover(a=4, b=1)
    assert world.running() == [0, 1, 2, 3]
    assert len(actions_of(world, Spawn)) == 5
    assert not actions_of(world, Notify)


def test_members_without_the_state_do_not_become_rank_0():
    world = started(World(least=1, cooldown=(1, 1)), a=2, b=2)
    world.exit(1)
    world.back(0, 2, 3)
    world.form()
    world.wait(3)
    world.ready()
    world.back(0, 2, 3)
    world.form(synced=False)
    assert world.running() == [0, 4, 2, 3]
    world.exit(0)
    world.back(4, 3, 2)
    world.form(synced=False)
    assert world.running() == [2, 3, 4]
    for number in (2, 3):
        world.exit(number)
    world.back(4)
    assert (world.end.success, world.end.text) == (False, "no worker is left that holds the state of the training")


def test_workers_that_die_before_the_first_sync_lose_nothing():
    world = World()
    world.discover(a=3, b=1)
    world.ready()
    world.form(synced=False)
    world.exit(0)
    world.back(1, 2, 3)
    world.form()
    assert world.running() == [1, 2, 3]


def test_workers_reported_lost_without_heartbeats_are_killed():
    world = started(World(), a=4)
    world.back(0, 1, 2, lost=(3,))
    assert world.membership.phase is Phase.GATHERING
    world.wait(ACCUSED)
    (kill,) = actions_of(world, Kill)
    assert (kill.worker, kill.why) == (3, "other ranks have lost it, and it does not respond")
    world.form()
    assert world.running() == [0, 1, 2]


def test_stopped_workers_are_killed_before_ranks_notice():
    world = started(World(), a=4)
    world.act(world.membership.accused([1], world.now, "it is stopped (SIGSTOP)"))
    assert actions_of(world, Break)[0].why == "rank 1 on host a: it is stopped (SIGSTOP)"
    assert actions_of(world, Kill)[0].worker == 1
    world.back(0, 2, 3)
    world.form()
    assert world.running() == [0, 2, 3]


def test_workers_that_ignore_the_error_are_named_and_killed():
    world = started(World(timeout=60), a=4)
    world.exit(0)
    world.back(1, 2)
    world.noticed_end(3)
    world.wait(30)
    (kill,) = actions_of(world, Kill)
    assert kill.worker == 3
    assert "goes on after a HorovodInternalError" in kill.why
    world.form()
    assert world.running() == [1, 2]


def test_epochs_start_after_killed_workers_are_gone():
    world = started(World(), a=2, b=2)
    world.processes[3].immortal = True
    world.back(0, 1, 2, lost=(3,))
    world.wait(ACCUSED + CERTAIN - 0.1)
    assert len(actions_of(world, Form)) == 1
    world.wait(0.1)
    assert len(actions_of(world, Form)) == 2
    assert any("rank 3 on host b failed: it did not end after SIGKILL" in text for text in world.messages)
    assert actions_of(world, Abandon) == [Abandon(3)]


def test_below_the_minimum_workers_wait_and_then_end():
    world = started(World(least=3, timeout=50), a=2, b=2)
    world.lose("b")
    world.back(0, 1)
    assert world.membership.phase is Phase.GATHERING
    assert world.messages[-1] == (
        "waiting for workers: 2 are there, 3 are needed to go on; without them the job ends in 50 s (--elastic-timeout)"
    )
    world.wait(40)
    world.discover(a=2, b=2, c=1)
    assert actions_of(world, Spawn)[-1].host == "c", "b is barred"
    world.ready()
    world.form()
    assert world.running() == [0, 1, 4]
    world.lose("c")
    world.back(0, 1)
    world.wait(50)
    assert world.end is not None
    assert not world.end.success
    assert world.end.text == ("50 s have passed without enough workers (--elastic-timeout): 2 are there, 3 are needed")


def test_a_host_comes_back_after_its_cooldown():
    world = started(World(cooldown=(10, 100)), a=2, b=2)
    world.lose("b")
    world.back(0, 1)
    world.form()
    assert world.running() == [0, 1]
    assert len(actions_of(world, Spawn)) == 4
    world.wait(20)
    assert [action.host for action in actions_of(world, Spawn)[4:]] == ["b", "b"]
    world.ready(4)
    assert not actions_of(world, Notify), "one pause for both"
    world.ready(5)
    assert len(actions_of(world, Notify)) == 1
    world.back(0, 1)
    world.form()
    assert world.running() == [0, 1, 4, 5]


def test_a_host_is_removed_gracefully():
    world = started(World(), a=2, b=2)
    world.discover(a=2)
    (notify,) = actions_of(world, Notify)
    assert notify.update == HostUpdateResult.removed
    world.back(0, 1, 2, 3)
    world.form()
    assert world.running() == [0, 1]
    assert [action.worker for action in actions_of(world, Dismiss)] == [2, 3]
    world.exit(2)
    world.wait(LEAVING)
    assert 3 not in world.processes, "who does not leave is killed"
    assert not any("failed" in text for text in world.messages)
    world.discover(a=2, b=2)
    assert len(actions_of(world, Spawn)) == 6, "b is not barred"


def test_one_worker_of_the_last_epoch_must_remain():
    world = started(World(start=2), a=2)
    world.discover(a=2, b=2)
    world.ready()
    world.lose("a")
    assert world.end is not None
    assert (world.end.success, world.end.text) == (False, "no worker is left that holds the state of the training")


def test_all_workers_of_a_lost_host_are_named_at_once():
    world = started(World(start=4, least=2, most=8), a=2, b=2)
    world.discover(a=2, b=3)  # the third on host b is still starting
    world.lose("b")
    (broken,) = actions_of(world, Break)
    assert broken.lost == (2, 3)
    world = started(World(start=2, least=1), a=2)
    world.discover(a=2, b=1)
    world.lose("b")
    assert not actions_of(world, Break), "no member was there"


def test_workers_with_the_state_keep_their_slots_first():
    workers = Workers()
    new, second, first, another = (workers.add("a", False) for _ in range(4))
    second.rank, second.holds = 1, True
    first.rank, first.holds = 0, True
    numbers = [new.number, second.number, first.number, another.number]
    for slots, leave in ((4, []), (3, numbers[3:]), (2, [numbers[0], numbers[3]]), (1, [*numbers[:2], numbers[3]])):
        workers.fit({"a": slots})
        assert [worker.number for worker in workers if worker.leaves] == leave


def test_unchanged_members_are_not_reported_but_replaced_ones_are():
    world = started(World(cooldown=(1, 1)), a=4)
    world.back(0, 1, 2, 3, lost=(1,))
    world.form()
    assert not world.messages
    world.exit(3)
    world.back(0, 1, 2)
    world.form()
    assert world.messages[-1] == "going on with 3 ranks"
    world.wait(3)
    world.ready()
    world.back(0, 1, 2)
    world.form()
    assert world.messages[-1] == "4 ranks now; new: rank 3 on host a"


def test_discovery_without_hosts_is_reported_and_removes_no_rank():
    world = started(World(), a=4)
    world.discover()
    assert (world.running(), world.messages) == ([0, 1, 2, 3], ["no host is found; what runs goes on"])
    did = Membership(Limits(1, 1, None), Blacklist(None), 0.0).discovered({}, 0.0, by="./hosts.sh")
    assert next(action.text for action in did if isinstance(action, Show)) == "no host is found: ./hosts.sh names none"
