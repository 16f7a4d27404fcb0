"""What `make test` leaves to `make test-all` is told of, by one process and by several."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    "words", [[], pytest.param(["-n", "2"], marks=pytest.mark.heavy)], ids=["alone", "side by side"]
)
def test_heavy_tests_run_when_they_are_asked_for_and_else_are_counted(tmp_path, words):
    (tmp_path / "conftest.py").write_text("from tests.heavy import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = heavy\n")
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(*more):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *more, str(tmp_path)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        passed = re.search(r"(\d+) passed", done.stdout)
        return int(passed[1]), "left to make test-all: 2 tests marked heavy (--heavy runs them)" in done.stdout

    assert run() == (1, True)
    assert run("--heavy") == (3, False)
