"""Messages between the membership of an elastic job and its workers."""

import horovod
from horovod.common.contract.membership import Facts, encode
from horovod.common.store.membership import MembershipControl
from horovod.common.store.messages import Come, Exchange, Get
from horovod.common.store.table import Table
from horovod.runner.elastic.actions import Form, Say
from horovod.runner.elastic.admission import Newcomers
from horovod.runner.elastic.limits import Blacklist, Limits
from horovod.runner.elastic.membership import Membership
from horovod.runner.job.membership_server import MembershipServer
from horovod.runner.plan.hosts import Slot


def test_a_worker_that_comes_when_it_was_given_up_is_told_so():
    front = MembershipControl()
    membership = Membership(Limits(2, 1), Blacklist(None), 0.0)
    desk = MembershipServer(front, membership, lambda action: None)
    table = Table(front.desk)
    membership.discovered({"a": 2}, 0.0)
    membership.host_lost("a", 1.0)
    table.handle(b"client", Come(1, 0, 0), 1.0)
    table.handle(b"other", Come(1, 1, 3), 1.0)
    front.serve(table)
    desk.serve(1.0)
    assert [(client, reply.error, reply.values) for client, reply in front.serve(table)] == [
        (b"client", "refused", [b"the launcher has given it up"]),
        (b"other", "refused", [b"the launcher has given it up"]),
    ]
    front.close()


def test_what_is_kept_does_not_grow_with_the_number_of_epochs():
    front = MembershipControl()
    desk = MembershipServer(front, Membership(Limits(2, 1), Blacklist(None), 0.0), lambda action: None)
    table = Table(front.desk)

    def kept():
        return sum(len(value) for value in vars(desk).values() if isinstance(value, dict))

    counts = []
    for epoch in range(1, 20):
        desk.do([Form(epoch, {0: Slot(0, 1, 0, 1, 0, 1, "a")})])
        for number in (epoch - 1, epoch):  # the first is late
            front.desk.met(f"init e{number}", 100 + number, False)
            front.desk.met(f"formed {100 + number}", 200 + number, True)
        front.serve(table)
        desk.serve(float(epoch))
        counts.append(kept())
    assert counts[-1] == counts[0] == 3
    front.close()


def test_who_dies_just_after_all_have_met_keeps_nobody_waiting():
    front = MembershipControl()
    membership = Membership(Limits(3, 1), Blacklist(None), 0.0)
    desk = MembershipServer(front, membership, lambda action: None)
    table = Table(front.desk)
    desk.do(membership.discovered({"a": 3}, 0.0))
    for worker in range(3):
        desk.do(membership.ready(worker, 0.0))
    front.serve(table)
    for rank in range(3):
        met = table.handle(b"%d" % rank, Exchange(1, "init e1", rank, 3, b"address", 60.0), 1.0)
    number = met[0][1].round
    front.serve(table)
    desk.do(membership.exited(2, False, 1.0))  # the launcher learns this before it learns that they have met
    desk.serve(1.0)
    front.serve(table)
    for question in (Exchange(2, f"formed {number}", 0, 3, b"", 60.0), Get(3, [f"failure {number}"], 60.0)):
        [(client, reply)] = table.handle(b"0", question, 1.0)
        assert client == b"0"
        assert "is gone" in reply.error or reply.values[0].endswith(b"is gone")
    front.close()


def test_a_newcomer_with_another_text_of_the_program_is_told_of_and_let_in():
    front, did = MembershipControl(), []
    membership = Membership(Limits(2, 2), Blacklist(None), 0.0)
    desk = MembershipServer(front, membership, did.append, Newcomers(same_code=False))
    table = Table(front.desk)
    desk.do(membership.discovered({"a": 2}, 0.0))
    for worker, code in enumerate(("aa", "bb")):
        facts = encode(Facts(horovod.__version__, "3.11", "train.py", code))
        table.handle(b"%d" % worker, Come(1, worker, 0, facts=facts), 1.0)
    front.serve(table)
    desk.serve(1.0)
    said = [action.text for action in did if isinstance(action, Say) and "its copy of" in action.text]
    assert [text.endswith(", which HOROVOD_ELASTIC_CODE=any allows") for text in said] == [True]
    assert membership.epoch == 1
    front.close()
