"""Tests that share an expensive start run in one process in sequence; the longest lanes begin first."""

import pytest

from tests.lanes import LONGEST_FIRST, lane, order, part

CONFORMANCE = "tests/conformance/test_conformance.py"
KERAS, TF, RUNNER = "tests/keras/test_optimizer.py", "tests/tensorflow/test_tape.py", "tests/runner/test_cli.py"


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        (f"{KERAS}::test_operations[jax-2]", "keras-jax"),
        (f"{KERAS}::test_xla", "tensorflow"),
        ("tests/keras/test_legacy.py::test_training[True]", "keras-legacy"),
        ("tests/torch/test_handles.py::test_names[torch]", "torch"),
        ("tests/test_api.py::test_older_paths[tensorflow]", "tensorflow"),
        (f"{CONFORMANCE}::test_on_more[keras, on jax-4]", "keras-jax"),
        (f"{CONFORMANCE}::test_a_face[numpy]", CONFORMANCE),
        (f"{RUNNER}::test_flags[torch-1]", RUNNER),
    ],
)
def test_the_lane_of_a_test(nodeid, expected):
    assert lane(nodeid) == expected


def test_long_lanes_come_first_and_files_in_their_order():
    found = [f"{RUNNER}::b", f"{RUNNER}::a", f"{KERAS}::c[torch]", f"{KERAS}::c[jax]", f"{TF}::d", f"{KERAS}::e[torch]"]
    assert sorted(found, key=order) == [found[4], found[3], found[2], found[5], found[0], found[1]]
    assert order(found[0]) == len(LONGEST_FIRST)


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/torch", "torch"),
        ("tests/torch/lightning/test_it.py", "torch"),
        ("tests/keras/test_fit.py", "tensorflow"),
        ("tests/ray/conftest.py", "spark-ray"),
        ("tests/runner/test_cli.py", "others"),
        ("tests/torchlike/test_it.py", "others"),
        ("tests/test_two_faces.py::test_equal_names_at_once", "tensorflow"),
        (f"{CONFORMANCE}::test_a_face[jax]", "jax"),
        (f"{CONFORMANCE}::test_a_face[keras, on torch]", "torch"),
        (f"{CONFORMANCE}::test_a_face[numpy]", "others"),
        ("tests/test_api.py::test_older_paths[tensorflow]", "tensorflow"),
    ],
)
def test_the_part_of_a_test_or_file(nodeid, expected):
    assert part(nodeid) == expected
