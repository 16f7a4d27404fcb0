"""The cases of every frontend: some of them on 2 ranks, all of them on 1 to 4."""

import pytest

from tests.conformance.adapters import ALL, BY_NAME, InFunction, InProgram
from tests.conformance.cases import SIZES
from tests.conformance.running import failures
from tests.later import need

IN_SHORT = 2
AT_LENGTH = 3  # the smallest number of ranks that is not a power of two


def conform(fleets, name, size):
    need(*BY_NAME[name].needs)
    tried, failed = failures(fleets, name, size)
    first = "\n".join(f"{what} {text}" for what, text in list(failed.items())[:3])
    assert not failed, f"{len(failed)} of {tried} cases fail:\n{first}"


@pytest.mark.parametrize(
    "name",
    # TensorFlow and JAX trace their functions again for each case, which takes a minute.
    [pytest.param(a.name, marks=[pytest.mark.heavy] * (a in (InFunction, InProgram))) for a in ALL],
)
def test_frontends_conform(fleets, name):
    conform(fleets, name, IN_SHORT)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, marks=pytest.mark.heavy if size == AT_LENGTH else pytest.mark.long)
        for size in SIZES
        if size != IN_SHORT
    ],
)
@pytest.mark.parametrize("name", [adapter.name for adapter in ALL])
def test_conformance_with_other_numbers_of_ranks(fleets, name, size):
    conform(fleets, name, size)
