"""Seals of objects: only an object that a member has just sent for this call is opened."""

import pytest

from horovod.common.exceptions import HorovodInternalError
from horovod.common.security import object_seal
from horovod.common.security.object_seal import Numbers, Seals

KEY = b"k" * 32
WORLD = [0, 1, 2]
NAME = "allgather_object 'a'"


def sealed(seals, data=b"object", operation=NAME, rank=1, ranks=WORLD, part="object", frontend=""):
    with seals.begin(operation, ranks, frontend) as call:
        return call.seal(data, rank, part)


def opened(seals, data, operation=NAME, rank=1, ranks=WORLD, part="object", frontend=""):
    with seals.begin(operation, ranks, frontend) as call:
        return bytes(call.open(memoryview(data), rank, part))


@pytest.mark.parametrize("data", [b"", b"object", b"x" * 100_000])
def test_sealed_objects_are_opened(data):
    sender, receiver = Seals(KEY), Seals(KEY)
    box = sealed(sender, data)
    assert len(box) == len(data) + sender.overhead
    assert opened(receiver, box) == data
    assert opened(Seals(b""), sealed(Seals(b""), data)) == data
    assert Seals(b"").overhead == 0


def refused(receiver, data, **place):
    with pytest.raises(HorovodInternalError, match=r"allgather_object 'a': the object of rank 1 was altered"):
        opened(receiver, data, **place)


def test_sealed_objects_are_bound_to_their_call():
    """It is rejected if repeated, or before or after its turn."""
    sender = Seals(KEY)
    first, second, third = (sealed(sender) for _ in range(3))
    receiver = Seals(KEY)
    refused(receiver, second)
    refused(receiver, first)
    assert opened(receiver, third) == b"object"
    receiver = Seals(KEY)
    assert opened(receiver, first) == b"object"
    refused(receiver, first)
    refused(receiver, second)


@pytest.mark.parametrize(
    "other",
    [{"operation": "allgather_object 'b'"}, {"rank": 2}, {"ranks": [0, 1]}, {"part": "size"}, {"frontend": "torch"}],
    ids=["operation", "rank", "set", "part", "frontend"],
)
def test_objects_of_another_place_are_refused(other):
    with pytest.raises(HorovodInternalError, match="altered"):
        opened(Seals(KEY), sealed(Seals(KEY)), **other)


def fail(seals):
    with seals.begin(NAME, WORLD) as call:
        call.cancel()


def test_a_call_that_fails_on_all_ranks_does_not_count():
    sender, receiver = Seals(KEY), Seals(KEY)
    fail(sender)
    assert opened(receiver, sealed(sender)) == b"object"
    for seals in (sender, receiver):
        fail(seals)
    assert opened(receiver, sealed(sender)) == b"object"


def test_concurrent_calls_of_other_threads_are_refused_and_not_counted():
    """Otherwise it would return a number after the next one is in use, and no later object could be opened."""
    sender, receiver = Seals(KEY), Seals(KEY)
    with sender.begin(NAME, WORLD) as call:
        with pytest.raises(ValueError, match=r"allgather_object 'a' is still in flight; wait for it"):
            sealed(sender)
        data = call.seal(b"object", 1, "object")
        assert sealed(sender, operation="allgather_object 'b'")
    assert opened(receiver, data) == b"object"
    assert opened(receiver, sealed(sender)) == b"object"


def test_every_altered_byte_and_truncation_is_detected():
    data = sealed(Seals(KEY))
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1
        for wrong in (changed, data[:index]):
            with pytest.raises(HorovodInternalError, match="altered"):
                opened(Seals(KEY), wrong)
    with pytest.raises(HorovodInternalError, match="altered"):
        opened(Seals(b"x" * 32), data)


def test_the_memory_for_names_is_bounded(monkeypatch):
    monkeypatch.setattr(object_seal, "_NAMES", 100)
    numbers = Numbers()
    numbered = [(name, numbers.take(name)) for step in range(300) for name in ("each", f"{step}", f"{step % 150}")]
    assert (len(numbers._next), len(set(numbered))) == (100, len(numbered))
