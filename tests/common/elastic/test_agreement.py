"""Choice of the rank whose state is used after a failure."""

from hypothesis import given
from hypothesis import strategies as st

from horovod.common.elastic.agreement import Outcome, Standing, compare_names, decide, find_mismatch, signature

NEW = Standing()


def at(steps: int, whole: bool = True, commits: int = 1, updates: int = 0) -> Standing:
    return Standing(steps, whole, commits, new=False, updates=updates)


def test_who_is_new_gives_nothing():
    assert decide([NEW, NEW]) == Outcome(0, False)
    assert decide([at(7), NEW, at(7)]) == Outcome(0, False)


def test_who_may_be_in_the_middle_of_something_is_not():
    assert decide([at(8, whole=False), at(7)]) == Outcome(1, False, 1)
    assert decide([at(8, whole=False), at(8)]) == Outcome(1, False, 0)


def test_of_several_optimizers_steps_of_the_training_are_lost():
    assert decide([at(8, False, updates=17), at(7, updates=14), at(7, updates=15)]) == Outcome(2, False, 1)


def test_without_anybody_who_is_whole_it_is_the_last_commit():
    assert decide([at(8, False, 3), at(8, False, 4), at(9, False, 4), NEW]) == Outcome(1, True)


@given(
    st.lists(st.just(NEW) | st.builds(at, st.integers(5, 6), st.booleans(), st.integers(1, 2)), min_size=1, max_size=6)
)
def test_never_more_than_one_step_is_lost_while_somebody_is_whole(standings):
    outcome = decide(standings)
    root = standings[outcome.root]
    if any(not one.new for one in standings):
        assert not root.new
    if any(one.whole and not one.new for one in standings):
        assert root.whole
        assert not outcome.restore
        assert outcome.lost <= 1


def test_attributes_that_differ_are_named():
    assert compare_names([["a", "b"], ["b", "a"]]) == ""
    assert compare_names([["a"], ["a", "b"], []]) == (
        "the states of the ranks have different attributes: rank 1 has b, which rank 0 has not; rank 2 has no a, which "
        "rank 0 has"
    )
    assert compare_names([["a"]] + [[]] * 20).endswith("rank 8 has no a, which rank 0 has; and 12 more ranks")


def test_whose_state_does_not_fit():
    same, other = (["a", "b"], False), (["a", "c"], True)
    why = (
        "the states of the ranks have different attributes: rank 2 has c, which rank 0 has not and has no b, which "
        "rank 0 has"
    )
    assert find_mismatch([same, (["b", "a"], True)], 0) is None
    for rank in (0, 1):
        assert find_mismatch([same, same, other], rank) == (why, False), "it can go on without the new one"
    assert find_mismatch([same, same, other], 2) == (why, True)
    new = ["a", "b"], True
    assert [find_mismatch([new, new, other], rank).mine for rank in range(3)] == [True] * 3, (
        "no rank knows which one is right"
    )


def test_signatures_tell_shapes_and_types_apart():
    one = signature([((2, 3), "float32"), ((3,), "float32")])
    assert one.startswith("2 tensors, ")
    assert one == signature([([2, 3], "float32"), ([3], "float32")])
    assert one != signature([((2, 3), "float32"), ((3,), "float64")])
    assert one != signature([((3, 2), "float32"), ((3,), "float32")])
