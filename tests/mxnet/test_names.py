"""Names of parameters that do not depend on what a rank has created before."""

import random

import pytest

from horovod.mxnet.functions import by_number, on_the_wire


@pytest.mark.parametrize("first", [0, 1, 9, 98])
def test_numbers_count_from_nought_in_order(first):
    names = [f"dense{first + i}_{what}" for i in range(12) for what in ("bias", "weight")]
    found = on_the_wire(sorted(names))
    assert [found[name] for name in names] == [f"dense{i}_{what}" for i in range(12) for what in ("bias", "weight")]


def test_parts_are_counted_within_what_comes_before():
    names = [
        "net7_dense3_weight",
        "net7_dense5_weight",
        "net9_dense5_weight",
        "plain",
        "fc2",
        "3",
        "net7_x01",
        "net7_x1",
    ]
    wanted = [
        "net0_dense0_weight",
        "net0_dense1_weight",
        "net1_dense0_weight",
        "plain",
        "fc0",
        "0",
        "net0_x0",
        "net0_x1",
    ]
    assert list(on_the_wire(names).values()) == wanted


def test_different_names_stay_different():
    letters = random.Random(1)
    names = {"".join(letters.choices("ab_0123", k=letters.randint(1, 7))) for _ in range(2000)}
    assert len(set(on_the_wire(names).values())) == len(names)


def test_sorting():
    assert sorted(["a10", "a9", "b1", "a9_2", "a9_10"], key=by_number) == ["a9", "a9_2", "a9_10", "a10", "b1"]
