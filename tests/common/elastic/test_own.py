"""Rank-local state survives the loss of its rank."""

import random

from hypothesis import given
from hypothesis import strategies as st

from horovod.common.elastic import ObjectState
from horovod.common.elastic.own import PerRank, RandomNumbers, seats
from tests.common.elastic.ranks import Face, run


def state(face: Face, own: str) -> ObjectState:
    return ObjectState(face.broadcast, face.rank, face.gather, step=0, own=PerRank([own]))


def test_seats():
    assert seats([None, None, None], {}) == [0, 1, 2]
    assert seats([0, 2, None], {0: 1, 1: 1, 2: 1}) == [0, 2, 1], "of the one who is gone"
    assert seats([0, None, 2, None], {0: 1, 1: 1, 2: 1}) == [0, 1, 2, 3]
    assert seats([2, None], {0: 1, 2: 1}) == [2, 0]


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=6), st.sets(st.integers(0, 9)))
def test_nobody_shares_a_seat(held, known):
    held = [seat if seat is None or held.index(seat) == number else None for number, seat in enumerate(held)]
    given = seats(held, dict.fromkeys(known))
    assert len(set(given)) == len(held)
    assert all(seat in (None, got) for seat, got in zip(held, given, strict=True))


def test_a_new_rank_goes_on_with_what_a_lost_one_had():
    states: list[ObjectState | None] = [None] * 3

    def first(face: Face) -> None:
        made = states[face.rank()] = state(face, f"of {face.rank()}")
        made.sync()
        assert made.own.value == [f"of {face.rank()}"], "not made equal"
        made.own.value.append("later")
        made.step += 1
        made.commit()
        made.own.value.append("not committed")
        made.restore()
        assert made.own.value == [f"of {face.rank()}", "later"]
        assert made.state_dict() == {"step": 1}, "not for checkpoints"

    assert run(3, first) == [None] * 3

    def second(face: Face) -> list[str]:
        # Rank 1 is lost; rank 2 takes its place, and the new rank is last.
        made = (states[0], states[2], state(face, "of a new one"))[face.rank()]
        assert made is not None
        made._bcast_object, made._gather, made._rank = face.broadcast, face.gather, face.rank
        made.sync()
        made.commit()
        return made.own.value

    assert run(3, second) == [["of 0", "later"], ["of 2", "later"], ["of 1", "later"]]


def test_random_numbers():
    numbers = RandomNumbers()
    told = numbers.get()
    drawn = random.random()
    numbers.put(told)
    assert random.random() == drawn
