"""Each test belongs to one tier."""

from pathlib import Path

import pytest

from tests.tiers import tier

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodeid", "marks", "expected"),
    [
        ("tests/torch/test_optimizer.py::test_step", set(), "first"),
        ("tests/torch/test_optimizer.py::test_step", {"heavy", "parametrize"}, "more"),
        ("tests/torch/test_optimizer.py::test_step", {"heavy", "long"}, "long"),
        ("tests/spark/test_run.py::test_run", set(), "more"),
        ("tests/spark/test_run.py::test_run", {"smoke"}, "first"),
        ("tests/cluster/test_launch.py::test_ranks", set(), "more"),
        ("tests/keras/test_optimizer.py::test_step[tensorflow]", set(), "first"),
        ("tests/keras/test_optimizer.py::test_step[jax-2]", set(), "more"),
        ("tests/keras/test_legacy.py::test_step", set(), "more"),
        ("tests/conformance/test_conformance.py::test_a_face[keras, on torch]", set(), "more"),
        ("tests/conformance/test_conformance.py::test_a_face[torch]", set(), "first"),
    ],
)
def test_the_tier_of_a_test(nodeid, marks, expected):
    assert tier(nodeid, marks) == expected
