"""Seals of objects: only what a member has just sent for this operation is opened, and once."""

import pytest

from horovod.common.exceptions import HorovodInternalError
from horovod.common.object_seal import _MISSING, Seals, Seen

KEY = b"k" * 32
WORLD = [0, 1, 2]


def sealed(seals, data=b"object", operation="allgather_object 'a'", rank=1, ranks=WORLD):
    return seals.seal(data, operation, rank, ranks)


def opened(seals, data, operation="allgather_object 'a'", rank=1, ranks=WORLD):
    return bytes(seals.open(memoryview(data), operation, rank, ranks))


@pytest.mark.parametrize("data", [b"", b"object", b"x" * 100_000])
def test_what_was_sealed_is_opened(data):
    sender, receiver = Seals(KEY), Seals(KEY)
    made = sealed(sender, data)
    assert len(made) == len(data) + sender.overhead
    assert opened(receiver, made) == data
    assert opened(Seals(b""), sealed(Seals(b""), data)) == data
    assert Seals(b"").overhead == 0


def test_a_repeated_object_is_refused():
    sender, receiver = Seals(KEY), Seals(KEY)
    first, second = sealed(sender), sealed(sender)
    assert opened(receiver, first) == b"object"
    with pytest.raises(HorovodInternalError, match="allgather_object 'a': the object of rank 1 was altered"):
        opened(receiver, first)
    assert opened(receiver, second) == b"object"
    with pytest.raises(HorovodInternalError, match="altered"):
        opened(receiver, first)


@pytest.mark.parametrize(
    "other", [{"operation": "allgather_object 'b'"}, {"rank": 2}, {"ranks": [0, 1]}], ids=["operation", "rank", "set"]
)
def test_an_object_of_another_place_is_refused(other):
    with pytest.raises(HorovodInternalError, match="altered"):
        opened(Seals(KEY), sealed(Seals(KEY)), **other)


def test_every_altered_byte_and_every_cut_is_noticed():
    made = sealed(Seals(KEY))
    for index in range(len(made)):
        changed = bytearray(made)
        changed[index] ^= 1
        for wrong in (changed, made[:index]):
            with pytest.raises(HorovodInternalError, match="altered"):
                opened(Seals(KEY), wrong)
    with pytest.raises(HorovodInternalError, match="altered"):
        opened(Seals(b"x" * 32), made)


def test_numbers_may_come_in_any_order_but_once():
    seen = Seen()
    assert [seen.take(number) for number in (3, 0, 2, 3, 0, 5, 1, 4, 4, 1)] == [
        *(True, True, True, False, False, True, True, True, False, False)
    ]


def test_the_memory_for_missing_numbers_is_bounded():
    seen = Seen()
    for number in range(1, 4 * _MISSING, 2):
        assert seen.take(number)
    assert seen.take(1 << 62)
    assert len(seen._missing) == _MISSING
    assert not seen.take(0)
    assert seen.take((1 << 62) - 1)
