"""States: saving, restoring, synchronizing, and notifications about hosts."""

import threading
from unittest import mock

import pytest

from horovod.common.contract.membership import HostUpdateResult
from horovod.common.elastic import ObjectState, WorkerNotificationManager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tests.common.elastic.ranks import FakeFrontend, Job, run


def state(frontend: FakeFrontend | None = None, check: bool = True, **kwargs):
    frontend = frontend or FakeFrontend()
    return ObjectState(frontend.broadcast, frontend.rank, frontend.gather if check else None, **kwargs)


def test_keywords_are_attributes_that_are_saved_and_restored():
    current = state(epoch=1, seen=[1, 2])
    current.seen.append(3)
    current.epoch = 5
    current.restore()
    assert (current.epoch, current.seen) == (1, [1, 2])
    current.seen.append(4)
    current.commit()
    current.seen.append(5)
    current.restore()
    current.seen.append(6)
    current.restore()
    assert current.seen == [1, 2, 4], "what is restored is a copy too"


@pytest.mark.parametrize("check", [True, False])
def test_sync_gives_all_ranks_the_state_of_rank_0_as_a_commit(check):
    def work(frontend: FakeFrontend):
        current = state(frontend, check, value=frontend.rank(), other="same")
        current.sync()
        current.value += 10
        current.restore()
        return current.value

    assert run(3, work) == [0, 0, 0]


def fail_to_sync(current):
    """Run a sync in which a rank is lost, then restore the last commit."""
    lost = mock.patch.object(current, "_bcast_object", side_effect=HorovodInternalError("one more"))
    with lost, pytest.raises(HorovodInternalError):
        current.sync()
    current.restore()


def test_unsynchronized_ranks_do_not_provide_the_state():
    """A new rank whose first sync fails may be rank 0 of the next epoch."""
    second = Job(2)

    def work(frontend: FakeFrontend):
        first, number = frontend.job, frontend.rank()
        current = state(frontend, trained=0)
        if number == 1:
            frontend.join(Job(1), 0)
            current.sync()
            current.trained = 9
            current.save()
            frontend.join(first, 1)
        fail_to_sync(current)
        frontend.join(second, number)
        current.sync()
        return current.trained

    assert run(2, work) == [9, 9]


def test_different_attributes_on_ranks_are_named_on_all_ranks():
    def work(frontend: FakeFrontend):
        more = {"b": 1} if frontend.rank() == 2 else {"a": 1}
        state(frontend, same=0, **more).sync()

    errors = run(3, work)
    message = (
        "the states of the ranks have different attributes: rank 2 has b, which rank 0 has not and has no a, which "
        "rank 0 has"
    )
    assert [str(error) for error in errors] == [message] * 3


def test_uncopyable_attributes_are_named_and_keep_the_commit():
    with pytest.raises(ValueError, match=r"the state's attribute 'lock' \(lock\) cannot be copied: TypeError: "):
        state(lock=threading.Lock())
    current = state(a=1, b=2)
    current.a, current.b = 3, (x for x in ())
    with pytest.raises(ValueError, match=r"'b' \(generator\) cannot be copied"):
        current.commit()
    current.restore()
    assert (current.a, current.b) == (1, 2), "the commit before is still whole"


def test_all_ranks_follow_the_notifications_of_rank_0():
    def work(frontend: FakeFrontend):
        current = state(frontend, value=0)
        if frontend.rank() == 1:
            current.on_hosts_updated(5.0, HostUpdateResult.added)
        current.commit()
        if frontend.rank() == 0:
            current.on_hosts_updated(6.0, HostUpdateResult.removed)
        try:
            current.commit()
        except HostsUpdatedInterrupt as interrupt:
            current.check_host_updates()
            return interrupt.skip_sync, current._last_updated_timestamp, current._host_messages.qsize()
        return None

    assert run(2, work) == [(True, 6.0, 0), (True, 6.0, 0)]


@pytest.mark.parametrize(
    ("result", "skip"),
    [
        ((HostUpdateResult.added,), False),
        ((HostUpdateResult.removed,), True),
        ((HostUpdateResult.removed, HostUpdateResult.added), False),
        ((HostUpdateResult.mixed,), False),
    ],
)
def test_only_removals_lose_nothing(result, skip):
    current = state(value=0)
    for number, update in enumerate(result, 1):
        current.on_hosts_updated(float(number), update)
    current.on_hosts_updated(0.0, HostUpdateResult.added)  # older than the known update
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        current.check_host_updates()
    assert caught.value.skip_sync is skip


def test_reset_clears_notifications_and_calls_back():
    current = state(value=0)
    called = []
    current.register_reset_callbacks([lambda: called.append(1), lambda: called.append(2)])
    current.on_hosts_updated(1.0, HostUpdateResult.added)
    current.on_reset()
    assert called == [1, 2]
    current.check_host_updates()


def test_notifications_reach_listeners():
    manager = WorkerNotificationManager()
    manager.init()
    started = []
    manager.begin_with(lambda: started.append(True))
    manager.init("rendezvous", 1, nic=None)
    assert started == [True]
    one, other = state(value=0), state(value=0)
    for listener in (one, one, other):
        manager.register_listener(listener)
    manager.remove_listener(other)
    manager.remove_listener(other)
    manager.handle_hosts_updated(3.0, HostUpdateResult.added)
    assert (one._host_messages.get(), one._host_messages.empty()) == ((3.0, HostUpdateResult.added), True)
    assert other._host_messages.empty()
