"""Names of parameters that do not depend on what a rank has created before."""

import random

import pytest

from horovod.mxnet.functions import on_the_wire


@pytest.mark.parametrize("first", [0, 1, 9, 98])
def test_numbers_count_up_from_zero(first):
    names = [f"dense{first + i}_{kind}" for i in range(12) for kind in ("bias", "weight")]
    found = on_the_wire(sorted(names))
    assert [found[name] for name in names] == [f"dense{i}_{kind}" for i in range(12) for kind in ("bias", "weight")]


def test_different_names_stay_different():
    letters = random.Random(1)
    names = {"".join(letters.choices("ab_0123", k=letters.randint(1, 7))) for _ in range(2000)}
    assert len(set(on_the_wire(names).values())) == len(names)
