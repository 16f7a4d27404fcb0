"""Membership of an elastic job: scenarios of its end, of deadlines, and of limits."""

import pytest

from horovod.runner.elastic.actions import JOIN_SECONDS, TORN_DOWN, Break, Dismiss, Kill, Phase, Spawn
from horovod.runner.elastic.limits import Limits
from tests.runner.elastic.world import World, actions_of, started


def test_one_success_is_a_success():
    world = started(World(), a=4)
    world.exit(0, success=True)
    assert world.membership.phase is Phase.FINISHING
    world.exit(1)
    world.back(2)
    assert actions_of(world, Dismiss)[-1].worker == 2, "no new epoch"
    world.exit(2)
    assert world.end is None, "rank 3 may still write something"
    world.exit(3, success=True)
    assert world.end is not None
    assert world.end.success


def test_the_reset_limit_counts_changes_of_members():
    world = started(World(resets=1), a=4)
    world.back(0, 1, 2, 3, lost=(1,))
    world.form()
    world.back(0, 1, 2, 3)
    world.form()
    assert world.running() == [0, 1, 2, 3], "the same members are no change"
    world.exit(3)
    world.back(0, 1, 2)
    world.form()
    world.exit(2)
    world.back(0, 1)
    assert world.end is not None
    assert world.end.text == "the members were to change more often than --reset-limit allows (1)"


@pytest.mark.parametrize("wrong", [(4, 5, None), (4, 0, None), (4, 2, 3)])
def test_mismatched_limits(wrong):
    with pytest.raises(ValueError, match=r"must be 1 <= --min-np <= -np <= --max-np, got --min-np"):
        Limits(*wrong)


def test_too_few_workers_left_and_no_usable_host():
    world = started(World(least=3), a=2, b=2)
    world.exit(0)
    world.back(1, 2, 3)
    world.form()
    assert world.running() == [1, 2, 3]
    world.exit(3)
    world.back(1, 2)
    assert world.end is not None
    assert world.end.text == (
        "a worker has failed on each of the hosts a, b, which therefore get no new ones (--blacklist-cooldown-range is "
        "not given): 2 are there, 3 are needed"
    )
    one = started(World(least=3, cooldown=(5, 5)), a=2, b=2)
    one.exit(0)
    one.exit(3)
    one.back(1, 2)
    assert one.end is None, "they will be back"


@pytest.mark.parametrize("complete", [False, True])
def test_too_few_workers_left_with_barred_or_full_hosts(complete):
    """For example if each slot is a host: hosts without a failure are full."""
    world = World(start=4, least=3, most=4)
    world.discover(complete=complete, a=1, b=1, c=1, d=1)
    world.ready()
    world.form()
    world.exit(0)
    world.back(1, 2, 3)
    world.form()
    assert world.end is None
    world.exit(3)
    world.back(1, 2)
    if not complete:
        assert world.end is None, "another host may come"
        return
    assert world.end is None, "its host may be lost as well, and make room for another"
    assert not any("waiting for workers" in text for text in world.messages), "for that time"
    world.wait(TORN_DOWN - 0.1)
    assert world.end is None
    world.wait(0.1)
    assert world.end is not None
    assert "on each of the hosts a, d, which therefore get no new ones" in world.end.text
    assert world.end.text.endswith(": 2 are there, 3 are needed")


def test_a_machine_shutting_down_ends_its_rank_first():
    world = World(start=2, least=2, most=2)
    world.discover(complete=True, a=1, b=1)
    world.ready()
    world.form()
    world.exit(1)
    world.back(0)
    world.wait(TORN_DOWN / 2)
    world.lose("b")
    world.discover(a=1)
    world.wait(60)
    assert world.end is None
    world.discover(complete=True, a=1, c=1)
    world.ready()
    world.form()
    assert world.running() == [0, 2]


def test_a_failure_before_the_first_epoch_may_end_the_job():
    world = World(start=2, least=1)
    world.discover(a=2)
    world.ready(0)
    world.exit(1)
    assert world.end is not None
    assert "1 are there, 2 are needed" in world.end.text


def test_the_job_does_not_wait_for_a_worker_with_an_exception():
    world = started(World(most=4), a=5)
    world.ending(1)
    assert actions_of(world, Break)[0].lost == (1,)
    world.back(0, 2, 3)
    world.form()
    assert world.running() == [0, 2, 3]
    assert world.messages == ["going on with 3 ranks"], "how it ends is not known yet"
    world.discover(a=5)
    assert len(actions_of(world, Spawn)) == 4, "whether its host may have new ones, its end tells"
    world.exit(1)
    assert world.messages[1] == "rank 1 on host a failed: it ended; 3 ranks left"
    assert world.running() == [0, 2, 3]
    # The job is over only after all workers have ended, so that their exit codes are known.
    for number in (0, 2, 3):
        world.ending(number)
    assert world.end is None
    for number in (0, 2, 3):
        world.exit(number)
    assert world.end is not None
    assert not world.end.success


def test_workers_that_announce_their_end_and_stay_are_killed():
    world = started(World(timeout=60), a=4)
    world.ending(3)
    world.back(0, 1, 2)
    world.form()
    world.wait(30)
    assert actions_of(world, Kill) == [Kill(3, "it had announced its end, and did not end")]


def test_a_new_worker_that_never_calls_init_is_killed_while_the_others_train():
    world = started(World(timeout=60, cooldown=(1, 1)), a=4)
    world.discover(a=5)
    world.wait(59)
    assert not actions_of(world, Kill)
    world.wait(1)
    assert actions_of(world, Kill) == [Kill(4, "it has not called hvd.init() within 60 s (--elastic-timeout)")]
    assert world.messages[-2].startswith("new worker 4 on host a failed: killed, since it has not called hvd.init()")
    assert world.running() == [0, 1, 2, 3]
    # A worker that started late is the same worker.
    world = World(start=2, timeout=60)
    world.discover(a=3)
    world.ready(0, 1)
    world.wait(JOIN_SECONDS)
    world.form()
    world.wait(59)
    assert not actions_of(world, Kill)
    world.wait(1)
    assert [action.worker for action in actions_of(world, Kill)] == [2]


def test_a_removed_host_that_vanishes_has_not_failed():
    world = started(World(least=1), a=2, b=2)
    world.discover(a=2)
    world.lose("b")
    assert world.messages == []
    world.back(0, 1)
    world.form()
    world.discover(a=2, b=2)
    assert [action.host for action in actions_of(world, Spawn)[4:]] == ["b", "b"], "it is not barred"


def test_deadlines_exclude_time_the_launcher_was_stopped():
    world = started(World(least=2, timeout=60, cooldown=(3000, 3000)), a=1, b=1, c=2)
    world.exit(0)
    world.back(1)
    world.now += 500
    world.membership.postpone(500)
    world.act(world.membership.tick(world.now))
    assert not actions_of(world, Kill), "ranks 2 and 3 have had no time to come back"
    world.wait(29)
    world.back(2)
    assert not actions_of(world, Kill)
    world.wait(1)
    assert [action.worker for action in actions_of(world, Kill)] == [3]
    world.form()
    assert world.running() == [1, 2]
    # The same without an epoch.
    world.exit(1)
    world.back(2)
    world.now += 500
    world.membership.postpone(500)
    world.wait(59)
    assert world.end is None
    world.wait(1)
    assert world.end is not None
