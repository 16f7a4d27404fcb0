"""The store's decisions, without a server: which client gets which reply, and when."""

import math

import pytest

from horovod.common.store import table as store_table
from horovod.common.store.messages import Exchange, Get, Set, unpack
from horovod.common.store.table import MAX_WAITING, Table


@pytest.fixture
def table():
    return Table()


def replies(responses):
    """Return (client, values or error) of each reply."""
    return [(client, reply.error or reply.values) for client, reply in responses]


def exchange(rank, size=2, value=b"", node="", group="g", timeout=10.0):
    return Exchange(rank, group, rank, size, value, timeout, node)


def test_values_are_returned_when_all_are_present(table):
    assert replies(table.handle(b"a", Set(1, "x", b"1"), 0)) == [(b"a", [])]
    assert replies(table.handle(b"b", Get(1, ["x"], 5), 0)) == [(b"b", [b"1"])]
    assert table.next_deadline() == math.inf
    assert table.handle(b"b", Get(2, ["x", "y", "z"], 5), 1) == []
    assert table.handle(b"c", Get(3, ["z"], 2), 1) == []
    assert table.next_deadline() == 3
    assert replies(table.handle(b"a", Set(2, "y", b"2"), 1)) == [(b"a", [])]
    responses = table.handle(b"a", Set(3, "z", b"3"), 2)
    assert replies(responses) == [(b"a", []), (b"b", [b"1", b"2", b"3"]), (b"c", [b"3"])]
    assert [reply.id for _, reply in responses] == [3, 2, 3]
    assert table.next_deadline() == math.inf
    assert replies(table.handle(b"a", Set(4, "z", b"4"), 2)) == [(b"a", [])]  # no client waits for it any more
    assert replies(table.handle(b"b", Get(4, ["z"], 0), 2)) == [(b"b", [b"4"])]


def test_timeouts_name_missing_ranks(table):
    table.handle(b"a", Set(1, "x", b"1"), 0)
    table.handle(b"b", Get(7, ["w", "x", "y"], 5), 1)
    assert table.expire(5.9) == []
    ((client, reply),) = table.expire(6.0)
    assert (client, reply.id, reply.error, reply.missing) == (b"b", 7, "timeout", ["w", "y"])
    assert table.expire(100.0) == []
    assert table.next_deadline() == math.inf


def test_a_round_ends_when_all_ranks_have_joined(table):
    assert table.handle(b"b", exchange(1, 3, b"one", node="n"), 0) == []
    assert table.handle(b"c", exchange(2, 3, b"two", node="n"), 0) == []
    table.publish()
    shown = table.waiting
    assert shown == {"g": (3, frozenset({1, 2}))}
    table.publish()
    assert table.waiting is shown  # unchanged
    responses = dict(table.handle(b"a", exchange(0, 3, b"zero"), 0))
    assert {client: reply.holder for client, reply in responses.items()} == {b"a": 0, b"b": 1, b"c": 1}
    assert {reply.round for reply in responses.values()} == {1}
    for client in (b"a", b"b"):
        assert [bytes(value) for value in unpack(responses[client].packed)] == [b"zero", b"one", b"two"]
    assert responses[b"c"].values == [b"one"]  # the rank that passes on all records
    assert not responses[b"c"].packed
    table.publish()
    assert table.waiting == {}
    # Another round, and one of a single-rank group.
    assert dict(table.handle(b"a", exchange(0, 1, b"x"), 0))[b"a"].round == 2


def test_wrong_sizes_and_ranks_are_named_and_change_nothing(table):
    assert replies(table.handle(b"a", exchange(2, 2), 0)) == [
        (b"a", "rank 2 says that the job has 2 ranks, which is too few")
    ]
    assert table._rounds == {}, "a request that fails leaves nothing behind"
    table.handle(b"a", exchange(1, 4), 0)
    table.handle(b"b", exchange(0, 4), 0)
    assert replies(table.handle(b"c", exchange(2, 3), 0)) == [
        (b"c", "rank 2 says that the job has 3 ranks, ranks 0, 1 said 4")
    ]
    assert replies(table.handle(b"c", exchange(1, 4), 0)) == [(b"a", "another process joined as rank 1")]
    assert table.handle(b"d", exchange(2, 4), 0) == []
    assert [client for client, _ in table.handle(b"e", exchange(3, 4), 0)] == [b"b", b"c", b"d", b"e"]


def test_waiting_requests_per_process_are_limited(table):
    refused = f"{MAX_WAITING} requests of this process wait already, which is the most that are accepted"
    for number in range(MAX_WAITING - 3):
        assert table.handle(b"a", Get(number, ["x"], 5), 0) == []
    for number in range(3):  # exchanges that end in several ways, in sequence
        assert table.handle(b"a", exchange(0, group="g") if number else Get(998, ["z"], 5), 0) == []
        assert table.handle(b"a", Get(998, ["y"], 2), 0) == []
        assert table.handle(b"a", Get(998, ["y"], 2), 0) == []
        assert replies(table.handle(b"a", Get(999, ["x"], 5), 0)) == [(b"a", refused)]
        assert len(table.expire(2)) == 2
        over = table.handle(b"b", exchange(1, group="g") if number else Set(1, "z", b""), 2)
        assert len(over) == 2
        table.handle(b"b", Set(1, "z", b""), 2)
    assert table.handle(b"a", exchange(0, group="h"), 0) == []
    assert replies(table.handle(b"c", exchange(0, group="h"), 0)) == [(b"a", "another process joined as rank 0")]
    for number in range(3):
        assert table.handle(b"a", Get(number, ["x"], 5), 0) == []
    assert replies(table.handle(b"a", Get(999, ["x"], 5), 0)) == [(b"a", refused)]
    assert table.handle(b"b", Get(1, ["x"], 5), 0) == []
    assert len(table.handle(b"a", Set(1, "x", b""), 0)) == MAX_WAITING + 2
    assert table.handle(b"a", Get(1, ["y"], 5), 0) == []


def test_stored_bytes_are_bounded_and_freed(table, monkeypatch):
    monkeypatch.setattr(store_table, "MAX_TOTAL_BYTES", 10_000)
    full = "the store is full: it holds 10000 bytes at most"
    large, larger = b"v" * 6000, b"v" * 9000

    def holds(size):
        """Return True if this many more bytes exceed the limit, and one byte less does not."""
        probe = Set(0, "", b"v" * (size - store_table._PER_ENTRY))
        assert replies(table.handle(b"p", probe, 0)) == [(b"p", full)]
        probe.value = probe.value[:-1]
        assert replies(table.handle(b"p", probe, 0)) == [(b"p", [])]
        table.handle(b"p", Set(0, "", b""), 0)

    table.handle(b"p", Set(0, "", b""), 0)
    rest = 10_000 - store_table._PER_ENTRY
    holds(rest + 1)
    for _ in range(5):  # each replaces the previous one
        assert replies(table.handle(b"a", Set(1, "x", large), 0)) != [(b"a", full)]
        table.handle(b"a", Set(1, "x", b""), 0)
    entry = store_table._PER_ENTRY + len("x")
    holds(rest - entry + 1)
    assert replies(table.handle(b"a", Set(1, "y", larger + large), 0)) == [(b"a", full)]
    for _ in range(5):  # exchanges and waits that end in either way
        table.handle(b"a", exchange(0, value=large), 0)
        table.handle(b"b", exchange(1), 0)
        table.handle(b"a", exchange(0, value=large), 0)
        table.handle(b"b", Get(1, ["nothing", "more"], 5), 0)
        table.expire(100)
    holds(rest - entry + 1)
    table.handle(b"b", Get(1, ["four", "more"], 5), 0)
    holds(rest - entry - store_table._PER_ENTRY - 2 * store_table._PER_NAME - 8 + 1)


def test_values_read_together_are_bounded(table, monkeypatch):
    monkeypatch.setattr(store_table, "MAX_REPLY_BYTES", 1000)
    for key, size in (("x", 600), ("y", 400), ("z", 401)):
        table.handle(b"a", Set(1, key, b"v" * size), 0)
    errors = [table.handle(b"b", Get(1, ["x", key], 0), 0)[0][1].error for key in "yz"]
    assert errors == ["", "these values have more than the accepted 1000 bytes together"]


def test_the_first_value_is_kept_on_request(table):
    for client, value in ((b"a", b"1"), (b"b", b"2")):
        assert replies(table.handle(client, Set(1, "x", value, first=True), 0)) == [(client, [b"1"])]


def test_a_rank_that_gives_up_leaves_the_round(table):
    table.handle(b"a", exchange(0, 3, timeout=5.0), 0)
    table.handle(b"b", exchange(2, 3, timeout=9.0), 0)
    found = [table.expire(now)[0][1] for now in (5.0, 9.0)]
    assert [(reply.missing, reply.gave_up) for reply in found] == [(["1"], []), (["1"], ["0"])]
