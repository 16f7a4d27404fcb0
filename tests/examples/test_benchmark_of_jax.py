"""benchmarks/jax_chain.py as a developer runs it, without the peer that it can be compared with."""

import re
import subprocess
import sys

import pytest

from tests.pool import ROOT

pytest.importorskip("jax")


def test_our_chains_have_figures() -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "jax_chain.py")]
    options = ["--ranks", "2", "--rounds", "1", "--seconds", "0", "--chains", "1", "2"]
    done = subprocess.run([*program, *options], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    head, _, *rows = done.stdout.splitlines()
    assert head == "| 2 ranks, ms a program | ours |"
    assert [re.sub(r"\d+\.\d+ \|$", "", row) for row in rows] == [
        f"| {size} x {chain} | " for size in ("4 KiB", "16 MiB") for chain in (1, 2)
    ]
