"""Each test belongs to one tier."""

import pytest

from tests.tiers import tier


@pytest.mark.parametrize(
    ("nodeid", "marks", "expected"),
    [
        ("tests/torch/test_optimizer.py::test_step", set(), "first"),
        ("tests/torch/test_optimizer.py::test_step", {"heavy", "parametrize"}, "more"),
        ("tests/torch/test_optimizer.py::test_step", {"heavy", "long"}, "long"),
        ("tests/spark/test_run.py::test_run", set(), "more"),
        ("tests/spark/test_run.py::test_run", {"smoke"}, "first"),
        ("tests/keras/test_optimizer.py::test_step[tensorflow]", set(), "first"),
        ("tests/keras/test_optimizer.py::test_step[jax-2]", set(), "more"),
        ("tests/conformance/test_conformance.py::test_a_frontend[keras, on torch]", set(), "more"),
    ],
)
def test_the_tier_of_a_test(nodeid, marks, expected):
    assert tier(nodeid, marks) == expected
