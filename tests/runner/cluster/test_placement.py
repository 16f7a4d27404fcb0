from horovod.runner.plan.hosts import place


def test_ranks_of_a_machine_are_consecutive_from_rank_0():
    placed = place({3: "b", 0: "b", 1: "a", 2: "c", 4: "a"})
    assert [number for number, _ in placed] == [0, 3, 1, 4, 2]
    slots = [slot for _, slot in placed]
    assert [slot.rank for slot in slots] == [0, 1, 2, 3, 4]
    assert [(slot.hostname, slot.local_rank, slot.local_size) for slot in slots] == [
        ("b", 0, 2),
        ("b", 1, 2),
        ("a", 0, 2),
        ("a", 1, 2),
        ("c", 0, 1),
    ]
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]
