"""Tests that share what is dear to start run in one process one after another, and the longest lanes begin first."""

import pytest

from tests.lanes import LONGEST_FIRST, lane, order

CONFORMANCE = "tests/conformance/test_conformance.py"
KERAS, TF, RUNNER = "tests/keras/test_optimizer.py", "tests/tensorflow/test_tape.py", "tests/runner/test_cli.py"


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        (f"{KERAS}::test_operations[torch]", "keras-torch"),
        (f"{KERAS}::test_operations[jax-2]", "keras-jax"),
        (f"{KERAS}::test_operations[tensorflow-2]", "tensorflow"),
        (f"{KERAS}::test_xla", "tensorflow"),
        ("tests/keras/test_jax_fit.py::test_fit[2]", "keras-jax"),
        ("tests/keras/test_legacy.py::test_training[True]", "keras-legacy"),
        ("tests/keras/test_torch_interrupt.py::test_ctrl_c[waiting]", "keras-torch"),
        (f"{TF}::test_of_the_torch", "tensorflow"),
        (f"{TF}::test_batch_norm[legacy]", "keras-legacy"),
        ("tests/test_two_faces.py::test_both", "tensorflow"),
        ("tests/test_two_faces.py::test_keras_on_jax_and", "keras-jax"),
        ("tests/torch/test_api.py::test_names[torch]", "torch"),
        ("tests/ray/test_executor.py::test_variables", "ray"),
        (f"{CONFORMANCE}::test_a_face[torch]", "torch"),
        (f"{CONFORMANCE}::test_a_face[tensorflow, in a tf.function]", "tensorflow"),
        (f"{CONFORMANCE}::test_on_more[keras, on tensorflow-4]", "tensorflow"),
        (f"{CONFORMANCE}::test_on_more[keras, on jax-4]", "keras-jax"),
        (f"{CONFORMANCE}::test_a_face[numpy]", CONFORMANCE),
        (f"{RUNNER}::test_flags[torch-1]", RUNNER),
        ("tests/common/launchers/test_find.py::test_find", "tests/common/launchers/test_find.py"),
        ("elsewhere/test_it.py::test_it", "elsewhere/test_it.py"),
    ],
)
def test_the_lane_of_a_test(nodeid, expected):
    assert lane(nodeid) == expected


def test_long_lanes_come_first_and_files_as_they_are_found():
    found = [f"{RUNNER}::b", f"{RUNNER}::a", f"{KERAS}::c[torch]", f"{KERAS}::c[jax]", f"{TF}::d", f"{KERAS}::e[torch]"]
    assert sorted(found, key=order) == [found[4], found[3], found[2], found[5], found[0], found[1]]
    assert order(found[0]) == len(LONGEST_FIRST)
