"""A run ends with where its time went."""

import os
import subprocess
import sys
from pathlib import Path

from tests import slowest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import time
import pytest

@pytest.fixture
def slow():
    time.sleep(0.3)

def test_quick():
    pass

def test_of_a_slow_fixture(slow):
    pass

def test_skipped():
    pytest.skip("no mood")
"""


def test_the_slowest_and_their_share():
    seconds = {"a": 1.0, "b": 6.0, "c": 3.0}
    lines = slowest.summary(seconds, 2)
    assert lines[0] == "the 2 slowest of 3 tests took 9.0 of 10.0 s, 90%:"
    assert [line.split() for line in lines[1:]] == [["6.0", "s", "b"], ["3.0", "s", "c"]]
    assert slowest.summary({}, 20) == []
    assert "0%" in slowest.summary({"a": 0.0}, 20)[0]


def test_fixtures_count_and_processes_side_by_side_report_to_one_place(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.slowest import pytest_addoption, pytest_terminal_summary\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    words = ["-p", "no:cacheprovider", "--slowest=1", "-n", "2", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("the 1 slowest of 3 tests took 0."))
    assert lines[head + 1].endswith("test_it.py::test_of_a_slow_fixture")
