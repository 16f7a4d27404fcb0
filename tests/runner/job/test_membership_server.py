"""Messages between the membership of an elastic job and its workers; their ranks; stopped workers."""

import horovod
from horovod.common.contract.membership import Facts, encode
from horovod.common.store.membership import MembershipControl
from horovod.common.store.messages import Join
from horovod.common.store.table import Table
from horovod.runner.elastic.actions import Show
from horovod.runner.elastic.limits import Blacklist, Limits, Newcomers
from horovod.runner.elastic.membership import Membership
from horovod.runner.elastic.workers import Candidate, places
from horovod.runner.job.membership_server import MembershipServer, Roster, StoppedWorkers


def test_late_workers_are_told_they_were_given_up():
    control = MembershipControl()
    membership = Membership(Limits(2, 1), Blacklist(None), 0.0)
    server = MembershipServer(control, membership, lambda action: None)
    table = Table(control.requests)
    membership.discovered({"a": 2}, 0.0)
    membership.host_lost("a", 1.0)
    table.handle(b"client", Join(1, 0, 0), 1.0)
    table.handle(b"other", Join(1, 1, 3), 1.0)
    control.serve(table)
    server.serve(1.0)
    assert [(client, reply.error, reply.values) for client, reply in control.serve(table)] == [
        (b"client", "refused", [b"the launcher has given it up"]),
        (b"other", "refused", [b"the launcher has given it up"]),
    ]
    control.close()


def test_newcomers_with_another_program_text_are_reported_and_admitted():
    control, did = MembershipControl(), []
    membership = Membership(Limits(2, 2), Blacklist(None), 0.0)
    server = MembershipServer(control, membership, did.append, Newcomers(same_code=False))
    table = Table(control.requests)
    server.do(membership.discovered({"a": 2}, 0.0))
    for worker, code in enumerate(("aa", "bb")):
        facts = encode(Facts(horovod.__version__, "3.11", "train.py", code))
        table.handle(b"%d" % worker, Join(1, worker, 0, facts=facts), 1.0)
    control.serve(table)
    server.serve(1.0)
    messages = [action.text for action in did if isinstance(action, Show) and "its copy of" in action.text]
    assert [text.endswith(", which HOROVOD_ELASTIC_CODE=any allows") for text in messages] == [True]
    assert membership.epoch == 1
    control.close()


def formed(*numbers):
    """Return an epoch of these workers, by rank."""
    return places([Candidate(number, "ab"[number % 2]) for number in numbers])


def test_ranks_of_workers():
    roster = Roster()
    for number in range(3):
        roster.join(number, "ab"[number % 2])
    assert [roster.rank_of(number) for number in range(3)] == [0, 1, 2], "what they will be, if nothing is in the way"
    assert roster.last_hosts == {0: "a", 1: "b", 2: "a"}, "no epoch has been formed"
    assert roster.by_rank({1: bytearray(b"1")}) == {1: b"1"}
    roster.end(0, False)
    roster.end(1, True)
    assert roster.last_hosts == {1: "b", 2: "a"}, "those that have not failed"
    roster.form(formed(0, 1, 2))
    roster.join(3, "b")
    assert [roster.rank_of(number) for number in range(4)] == [0, 1, 2, None]
    roster.form(formed(2, 3))
    assert [roster.rank_of(number) for number in range(4)] == [0, 1, 0, 1], "who has gone keeps the last one"
    assert (roster.members, roster.last_hosts) == ([2, 3], {0: "a", 1: "b"})
    assert roster.by_rank({0: bytearray(b"0"), 3: bytearray(b"3")}) == {1: b"3"}


def test_workers_stopped_too_long_are_reported_once_per_timeout():
    stopped = StoppedWorkers(10.0)
    assert stopped.next_time() is None
    stopped.stops(3, 1.0)
    stopped.stops(5, 4.0)
    assert stopped.next_time() == 11.0
    assert stopped.take_late(10.9) == []
    assert stopped.take_late(11.0) == [3]
    assert stopped.take_late(11.1) == []
    assert stopped.next_time() == 14.0
    assert stopped.take_late(21.0) == [3, 5]
