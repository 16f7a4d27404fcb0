"""How ranks agree on the process sets passed to init."""

import pytest

from horovod.common.communicators import SetSpec, agree_on_sets

NULL = ()


def by_comm(*columns, world=None):
    """``columns``: for each index what each rank passes, world ranks of its communicator or a list of ranks."""
    rows = [
        [SetSpec(one) if isinstance(one, list) else SetSpec(list(one), by_communicator=True) for one in row]
        for row in zip(*columns, strict=True)
    ]
    return agree_on_sets(rows, world or range(len(rows)), lambda rank: f"rank {rank} (host h)")


def test_lists_are_unchanged():
    assert by_comm([[0, 1]] * 3, [[2]] * 3) == (((0, 1),), ((2,),))
    assert agree_on_sets([[], []], [0, 1], str) == ()


def test_split_gives_several_sets_in_the_order_of_their_first_rank():
    assert by_comm([(0, 3), (1, 2), (1, 2), (0, 3)]) == (((0, 3), (1, 2)),)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            [[(0, 1), (0, 1), (1, 2)]],
            r"process_sets\[0\]: .*rank 2 .*\[1, 2\], but rank 1 .* ranks \[0, 1\]; .*not overlap",
        ),
        ([[(0, 1), (1,)]], r"process_sets\[0\]: .*rank 0 .*\[0, 1\], but rank 1 .* ranks \[1\]; .*not overlap"),
        ([[(0, 1), NULL]], r"process_sets\[0\]: .*rank 0 .*\[0, 1\], but rank 1 .* none, COMM_NULL"),
        ([[(1,), (1,)]], r"process_sets\[0\]: .*rank 0 .*\[1\], but rank 0 "),
        (
            [[[0]] * 2, [(0, 9), (1,)]],
            r"process_sets\[1\] must be .*rank 0 .*\[0, 9\], of which \[9\] are not in this job",
        ),
        ([[(1, 0), (1, 0)]], r"process_sets\[0\]: .*must be in the order of hvd.rank\(\), got \[1, 0\] on rank 0"),
        ([[NULL, NULL]], r"process_sets\[0\] must be .*, got COMM_NULL on all ranks"),
        ([[(0,), [0]]], r"process_sets\[0\] is made from a communicator on rank 0 .* from ranks on rank 1"),
        ([[[0], [1]]], r"process_sets\[0\] has ranks \[0\] on rank 0 .* but \[1\] on rank 1"),
        ([[(0,), (1,)], [[1], [1]]], r"process_sets\[1\] with ranks \[1\] repeats process_sets\[0\]"),
        ([[[1], [1]], [(0,), (1,)]], r"process_sets\[1\] with ranks \[1\] repeats process_sets\[0\]"),
    ],
)
def test_invalid_sets_are_named_with_index_and_ranks(columns, message):
    with pytest.raises(ValueError, match=message):
        by_comm(*columns)


def test_different_numbers_of_sets():
    with pytest.raises(ValueError, match=r"rank 0 \(h\) gave init 1 process sets, rank 1 \(h\) 0"):
        agree_on_sets([[SetSpec([0])], []], [0, 1], lambda rank: f"rank {rank} (h)")
