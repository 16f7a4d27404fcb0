"""Rank-local state survives the loss of its rank."""

import random

from horovod.common.elastic import ObjectState
from horovod.common.elastic.own import PerRank, RandomNumbers
from tests.common.elastic.ranks import FakeFrontend, run


def state(frontend: FakeFrontend, own: str) -> ObjectState:
    return ObjectState(frontend.broadcast, frontend.rank, frontend.gather, step=0, own=PerRank([own]))


def test_a_new_rank_goes_on_with_what_a_lost_one_had():
    states: list[ObjectState | None] = [None] * 3

    def first(frontend: FakeFrontend) -> None:
        made = states[frontend.rank()] = state(frontend, f"of {frontend.rank()}")
        made.sync()
        assert made.own.value == [f"of {frontend.rank()}"], "not made equal"
        made.own.value.append("later")
        made.step += 1
        made.commit()
        made.own.value.append("not committed")
        made.restore()
        assert made.own.value == [f"of {frontend.rank()}", "later"]
        assert made.state_dict() == {"step": 1}, "not for checkpoints"

    assert run(3, first) == [None] * 3

    def second(frontend: FakeFrontend) -> list[str]:
        # Rank 1 is lost; rank 2 takes its place, and the new rank is last.
        made = (states[0], states[2], state(frontend, "of a new one"))[frontend.rank()]
        assert made is not None
        made._bcast_object, made._gather, made._rank = frontend.broadcast, frontend.gather, frontend.rank
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
