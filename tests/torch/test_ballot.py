"""Readiness flags that ranks exchange in a round: byte vectors whose maximum the engine computes."""

import pytest

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError
from horovod.torch import ballot


def cast(me, flags=(1, 0), wishes=(0, 0), ranks=3, **said):
    return ballot.cast(
        ranks,
        me,
        flags,
        wishes,
        **{"at_step": False, "failed": 0, "rounds": 0, "most_rounds": 1, "steps": 0, "epoch": 0, **said},
    )


def outcome(*vectors, ranks=3):
    return ballot.read(bytearray(map(max, zip(*vectors, strict=True))), ranks)


def test_what_all_have_told():
    mine, theirs = cast(0, (1, 0), rounds=2), cast(1, (0, 3), (0, 1), rounds=2, at_step=True, most_rounds=4)
    vector = bytearray(map(max, zip(mine, theirs, strict=True)))
    assert ballot.flags_of(vector, 3, 2) == bytearray((1, 3))
    told = ballot.read(vector, 3)
    assert told == (False, bytearray((1, 3, 0, 1)), True, True, 0, 2, 2, 4, 0, 0, 0, 0)
    ballot.check(told, 0)
    both = outcome(mine, theirs, cast(2, rounds=2))
    assert both.all_here
    alone = outcome(cast(0, at_step=True), ranks=3)
    assert (alone.at_step, alone.at_end) == (True, False)


def test_who_is_in_no_place_of_the_set_takes_no_part():
    assert not any(cast(None)[:3])


def test_a_pass_that_has_failed_is_named():
    with pytest.raises(HorovodInternalError, match=r"backward\(\) failed on rank 7, "):
        ballot.check(outcome(cast(0), cast(1, failed=8)), 0)
    with pytest.raises(HorovodInternalError, match=r"backward\(\) failed on rank 253, "):
        ballot.check(outcome(cast(0), cast(1, failed=254)), 0)
    for failed in (255, 256, 5000):  # more than a byte can hold
        with pytest.raises(HorovodInternalError, match=r"backward\(\) failed on another rank, "):
            ballot.check(outcome(cast(0), cast(1, failed=failed)), 0)


def test_ranks_that_have_been_through_different_numbers_of_rounds():
    with pytest.raises(RanksDisagreeError, match=r"before this one, 1 on some ranks and 3 on others \(times"):
        ballot.check(outcome(cast(0, rounds=2), cast(1, rounds=1), cast(2, rounds=3)), 0)
    for rounds in (0, 254, 255, 256, 1000):
        ballot.check(outcome(cast(0, rounds=rounds), cast(1, rounds=rounds)), 0)
    with pytest.raises(RanksDisagreeError, match="0 on some ranks and 254 on others"):
        ballot.check(outcome(cast(0, rounds=254), cast(1, rounds=255)), 0)
    assert outcome(cast(0, most_rounds=300)).rounds == ballot.MOST


def test_ranks_in_different_steps():
    for steps in (0, 254, 255, 300, 1000):
        ballot.check(outcome(cast(0, steps=steps), cast(1, steps=steps)), steps)
    for mine, theirs in ((7, 8), (8, 7), (255, 254), (254, 255), (509, 511), (1020, 1019), (300, 290)):
        told = outcome(cast(0, steps=mine), cast(1, steps=theirs))
        with pytest.raises(RanksDisagreeError, match=rf"called step\(\) {mine} times, another rank {theirs} times"):
            ballot.check(told, mine)


def test_ranks_in_different_epochs():
    told = outcome(cast(0, epoch=3), cast(1, epoch=4))
    assert (told.last_epoch, told.first_epoch) == (4, 3)
    ballot.check(told, 0)  # no error: it may be intended
