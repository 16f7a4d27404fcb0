"""Tests that share an expensive start run in one process in sequence; the longest lanes begin first."""

import pytest

from tests.lanes import lane

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
