"""Skipped tests are reported, and unexpected ones fail the run in CI."""

import os
import subprocess
import sys
from pathlib import Path

from tests import skips

ROOT = Path(__file__).resolve().parents[2]
TEST = """
import pytest

def test_it():
    pytest.skip("no mood")
"""


def test_unknown_reasons_are_listed_and_fail_the_run_in_ci(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.skips import pytest_sessionfinish\n")
    (tmp_path / "test_it.py").write_text(TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == skips.STATUS, done.stdout
    assert "CI is set and tests/skips.txt does not know: no mood" in done.stdout.splitlines()[-1]
    assert not skips.fails(["no mood"], {})
