"""scripts/python-tests.sh: failed tests are retried alone, and the retry is reported."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TESTS = """
import pathlib

def test_steady():
    pass

def test_flaky():
    seen = pathlib.Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = """
def test_broken():
    assert False
"""


def run(folder, text):
    for name in ("python-tests.sh", "note-second-try.sh"):
        (folder / "scripts").mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / name, folder / "scripts")
    (folder / "test_here.py").write_text(text)
    command = [folder / "scripts/python-tests.sh", "-q", "test_here.py"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    notes = folder / "build/second-tries.txt"
    return done.returncode, done.stdout, notes.read_text() if notes.exists() else ""


@pytest.mark.heavy
def test_a_test_that_fails_again_fails_the_run_and_is_not_noted(tmp_path):
    code, output, notes = run(tmp_path, TESTS + BROKEN)
    assert code == 1, output
    assert output.endswith("needed a second try:\n  test_here.py::test_flaky\n")
    assert "broken" not in notes
