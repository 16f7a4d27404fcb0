"""Choice of the rank whose state is used after a failure."""

from hypothesis import given
from hypothesis import strategies as st

from horovod.common.elastic.agreement import Outcome, Standing, compare_names, decide, find_mismatch, signature

NEW = Standing()


def at(steps: int, whole: bool = True, commits: int = 1, updates: int = 0) -> Standing:
    return Standing(steps, whole, commits, new=False, updates=updates)


def test_new_ranks_do_not_provide_the_state():
    assert decide([NEW, NEW]) == Outcome(0, False)
    assert decide([at(7), NEW, at(7)]) == Outcome(0, False)


def test_ranks_in_an_incomplete_step_do_not_provide_the_state():
    assert decide([at(8, whole=False), at(7)]) == Outcome(1, False, 1)
    assert decide([at(8, whole=False), at(8)]) == Outcome(1, False, 0)


def test_lost_steps_are_counted_over_several_optimizers():
    assert decide([at(8, False, updates=17), at(7, updates=14), at(7, updates=15)]) == Outcome(2, False, 1)


def test_without_a_complete_state_the_last_commit_is_used():
    assert decide([at(8, False, 3), at(8, False, 4), at(9, False, 4), NEW]) == Outcome(1, True)


@given(
    st.lists(st.just(NEW) | st.builds(at, st.integers(5, 6), st.booleans(), st.integers(1, 2)), min_size=1, max_size=6)
)
def test_at_most_one_step_is_lost_while_one_state_is_complete(standings):
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


def test_mismatched_states_are_named():
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
    assert [find_mismatch([new, new, other], rank).is_local for rank in range(3)] == [True] * 3, (
        "no rank knows which one is right"
    )


def test_signatures_distinguish_shapes_and_types():
    one = signature([((2, 3), "float32"), ((3,), "float32")])
    assert one.startswith("2 tensors, ")
    assert one == signature([([2, 3], "float32"), ([3], "float32")])
    assert one != signature([((2, 3), "float32"), ((3,), "float64")])
    assert one != signature([((3, 2), "float32"), ((3,), "float32")])
