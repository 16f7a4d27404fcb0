"""Each test belongs to one tier."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import none_first, tier

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.heavy
@pytest.mark.parametrize("number", [1, 2])
def test_heavy(number):
    pass

def test_light():
    pass

@pytest.mark.long
def test_long():
    pass
"""


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


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("tests/spark/test_run.py", "def test_it(): ...", True),
        ("tests/spark/test_run.py", "@pytest.mark.smoke\ndef test_it(): ...", False),
        ("tests/torch/test_run.py", "def test_it(): ...", False),
        ("tests/torch/test_run.py", "pytestmark = pytest.mark.heavy\n", True),
        ("tests/torch/test_run.py", "    @pytest.mark.heavy\n", False),
    ],
)
def test_files_of_the_second_tier_need_not_be_imported_for_the_first(path, text, expected):
    assert none_first(path, text) == expected


@pytest.mark.heavy
@pytest.mark.parametrize("words", [[], ["-n", "2"]], ids=["alone", "side by side"])
def test_a_run_of_one_tier_leaves_out_the_other(tmp_path, words):
    (tmp_path / "conftest.py").write_text("from tests.tiers import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    heavy\n    long\n")
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
        return int(passed[1]), "tests of other tiers were left out" in done.stdout

    assert run("--tier=first") == (1, True)
    assert run("--tier=more") == (2, True)
    assert run("--tier=long") == (1, True)
