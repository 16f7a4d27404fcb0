"""Identities of the workers of an elastic job."""

from horovod.runner.elastic.workers import Candidate, places
from horovod.runner.job.roster import Roster


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
