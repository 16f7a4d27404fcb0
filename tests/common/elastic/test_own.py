"""Rank-local state survives the loss of its rank."""

import random

from horovod.common.elastic import ObjectState
from horovod.common.elastic.own import PerRank, RandomNumbers
from tests.common.elastic.ranks import FakeFrontend, run


def state(frontend: FakeFrontend, own: str) -> ObjectState:
    return ObjectState(frontend.broadcast, frontend.rank, frontend.gather, step=0, own=PerRank([own]))


def test_a_new_rank_continues_with_the_state_of_a_lost_one():
    states: list[ObjectState | None] = [None] * 3

    def first(frontend: FakeFrontend) -> None:
        own_state = states[frontend.rank()] = state(frontend, f"of {frontend.rank()}")
        own_state.sync()
        assert own_state.own.value == [f"of {frontend.rank()}"], "not made equal"
        own_state.own.value.append("later")
        own_state.step += 1
        own_state.commit()
        own_state.own.value.append("not committed")
        own_state.restore()
        assert own_state.own.value == [f"of {frontend.rank()}", "later"]
        assert own_state.state_dict() == {"step": 1}, "not for checkpoints"

    assert run(3, first) == [None] * 3

    def second(frontend: FakeFrontend) -> list[str]:
        # Rank 1 is lost; rank 2 takes its place, and the new rank is last.
        own_state = (states[0], states[2], state(frontend, "of a new one"))[frontend.rank()]
        assert own_state is not None
        own_state._bcast_object, own_state._gather, own_state._rank = frontend.broadcast, frontend.gather, frontend.rank
        own_state.sync()
        own_state.commit()
        return own_state.own.value

    assert run(3, second) == [["of 0", "later"], ["of 2", "later"], ["of 1", "later"]]


def test_random_numbers():
    numbers = RandomNumbers()
    saved = numbers.get()
    number = random.random()
    numbers.put(saved)
    assert random.random() == number
