"""Assignment of ranks to workers in the next epoch."""

from horovod.runner.elastic.workers import Candidate, foreseen


def test_a_place_is_foreseen_when_a_worker_is_started():
    """Initially in the order of the hosts; later, training workers come before new ones."""
    begin = foreseen([Candidate(0, "b"), Candidate(1, "b"), Candidate(2, "a")])
    assert [(slot.rank, slot.local_rank, slot.local_size) for slot in begin.values()] == [
        (0, 0, 2),
        (1, 1, 2),
        (2, 0, 1),
    ]
    later = foreseen([Candidate(0, "b", 0), Candidate(2, "a", 1), Candidate(3, "b"), Candidate(4, "c")])
    assert {number: (slot.rank, slot.size, slot.local_rank) for number, slot in later.items()} == {
        0: (0, 4, 0),
        3: (1, 4, 1),
        2: (2, 4, 0),
        4: (3, 4, 0),
    }
