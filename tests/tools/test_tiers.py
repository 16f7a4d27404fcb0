"""Each test runs in one of the two tiers, and a run of one tier says how many tests belong to the other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import tier

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.heavy
@pytest.mark.parametrize("number", [1, 2])
def test_heavy(number):
    pass

def test_light():
    pass
"""


@pytest.mark.parametrize(
    ("nodeid", "marks", "expected"),
    [
        ("tests/torch/test_optimizer.py::test_step", set(), "first"),
        ("tests/torch/test_optimizer.py::test_step", {"heavy", "parametrize"}, "more"),
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


@pytest.mark.parametrize(
    "words", [[], pytest.param(["-n", "2"], marks=pytest.mark.heavy)], ids=["alone", "side by side"]
)
def test_a_run_of_one_tier_counts_the_tests_of_the_other(tmp_path, words):
    (tmp_path / "conftest.py").write_text("from tests.tiers import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = heavy\n")
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(*more):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *more, str(tmp_path)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        passed = re.search(r"(\d+) passed", done.stdout)
        left = re.search(r"(\d+) tests belong to the other tier \((.*)\)", done.stdout)
        return int(passed[1]), left and left.groups()

    assert run() == (3, None)
    assert run("--tier=first") == (1, ("2", "make test-more"))
    assert run("--tier=more") == (2, ("1", "make test"))
