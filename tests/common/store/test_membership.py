"""The server at which workers of an elastic job wait for the launcher's decisions."""

import os
import select
import threading

import pytest

from horovod.common.contract.membership import HostUpdateResult, Over, Place, Updated, decode_news, decode_place, encode
from horovod.common.contract.worker_env import make_key
from horovod.common.store.client import StoreClient, StoreError, StoreRefused
from horovod.common.store.membership import EndReported, JoinRequest, MembershipControl, MembershipRequests, RoundEnd
from horovod.common.store.messages import Exchange, Join, Leave, News
from horovod.common.store.server import StoreServer
from horovod.common.store.table import Table


def short(replies):
    return [(client, reply.id, reply.error or [*reply.values]) for client, reply in replies]


def test_a_worker_waits_for_its_place():
    requests = MembershipRequests()
    assert requests.handle(b"a", Join(1, 7, 3, [4, 5], b"facts")) == []
    assert requests.outgoing == [JoinRequest(7, 3, (4, 5), b"facts")]
    assert short(requests.place(8, b"not here")) == []
    assert short(requests.place(7, b"place")) == [(b"a", 1, [b"place"])]
    assert short(requests.place(7, b"again")) == []
    requests.handle(b"a", Join(2, 7, 4))
    assert short(requests.refuse(7, "no slot")) == [(b"a", 2, "refused")]
    requests.handle(b"a", Join(3, 7, 4, in_sync=True))
    assert requests.outgoing[-1] == JoinRequest(7, 4, (), b"", in_sync=True)


def test_no_notification_is_lost():
    requests = MembershipRequests()
    for worker in (1, 2):
        requests.handle(b"x", Join(1, worker, 0))
        requests.place(worker, b"p")
    assert short(requests.publish([1, 2], b"one")) == [], "kept for those who have not asked yet"
    assert short(requests.handle(b"a", News(1, 1, 0))) == [(b"a", 1, [b"one"])]
    assert short(requests.handle(b"a", News(2, 1, 1))) == []
    assert short(requests.handle(b"a", News(3, 1, 1))) == []
    assert short(requests.publish([1], b"two")) == [(b"a", 3, [b"two"])], "the last request is the one that counts"
    requests.publish([1], b"three")
    assert short(requests.handle(b"a", News(4, 1, 1))) == [(b"a", 4, [b"two", b"three"])], (
        "what it did not get comes again"
    )
    assert short(requests.handle(b"b", News(1, 2, 0))) == [(b"b", 1, [b"one"])]
    requests.handle(b"c", News(1, 3, 0))
    requests.forget(3)
    assert short(requests.publish([3], b"four")) == []


def test_the_launcher_is_notified_when_ranks_have_met():
    requests = MembershipRequests()
    table = Table(requests)
    for rank in range(2):
        table.handle(b"%d" % rank, Exchange(1, "init e3", rank, 2, b"record", 9.0), 0.0)
    for rank in range(2):
        table.handle(b"%d" % rank, Exchange(2, "formed 1", rank, 2, b"", 9.0), 0.0)
    table.handle(b"0", Leave(3, 0, 5, [1]), 0.0)
    assert requests.outgoing == [RoundEnd("init e3", 1, False), RoundEnd("formed 1", 2, True), EndReported(0, 5, (1,))]


def test_encoded_membership_messages():
    place = Place(3, 1, 2, 0, 1, 1, 2, [4, 9])
    assert decode_place(encode(place)) == place
    for update in (Over(3, "rank 1 is gone"), Updated(3, 5.5, int(HostUpdateResult.added))):
        assert decode_news(encode(update)) == update
    assert Updated(3, 5.5, 2).result is HostUpdateResult.added
    for decode in (decode_place, decode_news):
        with pytest.raises(ValueError):
            decode(b"\x93\x01")


def wait_for(fd: int) -> None:
    assert select.select([fd], [], [], 120)[0], "nothing was told"


def test_membership_through_a_server():
    key, control = make_key(), MembershipControl()
    before = len(os.listdir("/proc/self/fd"))
    with StoreServer(key, control=control) as server:
        host, port = server.address
        got: dict[str, object] = {}

        def worker():
            with StoreClient(key, host, port, 120.0) as client:
                got["place"] = client.join_next(7, 0, facts=b"me")
                client.report_end(7, 1, [8])
                try:
                    client.exchange("init e1", 0, 2, b"", 120.0)
                except StoreError as error:
                    got["failed"] = str(error)
                try:
                    client.join_next(7, 1)
                except StoreRefused as error:
                    got["refused"] = str(error)

        def listener():
            with StoreClient(key, host, port, 120.0) as client:
                got["news"] = client.news(7, 0)

        threads = [threading.Thread(target=worker), threading.Thread(target=listener)]
        for thread in threads:
            thread.start()
        wait_for(control.fd)
        assert control.take() == [JoinRequest(7, 0, (), b"me")]
        assert control.take() == []
        control.place(7, b"place")
        wait_for(control.fd)
        assert control.take() == [EndReported(7, 1, (8,))]
        control.publish([7], b"news")
        threads[1].join(120)
        while not server.waiting():
            threading.Event().wait(0.01)
        control.set("failure 1", b"worker 8 is gone")
        control.fail("init e1", "worker 8 is gone")
        wait_for(control.fd)
        assert control.take() == [JoinRequest(7, 1, (), b"")]
        control.refuse(7, "host a has no slot for it any more")
        threads[0].join(120)
        with StoreClient(key, host, port) as client:
            assert client.get("failure 1") == b"worker 8 is gone"
    assert got.pop("news") == (1, [b"news"])
    assert got == {"place": b"place", "failed": "worker 8 is gone", "refused": "host a has no slot for it any more"}
    assert len(os.listdir("/proc/self/fd")) <= before
    control.close()
