"""The programs of benchmarks/: each one measures something and prints it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["run", "hosts", "control", "fusion", "compression"])
def test_a_wrong_option_is_refused(name: str) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / f"{name}.py"), "--none"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unrecognized arguments: --none" in done.stderr


IN_A_JOB = [sys.executable, "-m", "horovod.runner", "-np", "2", sys.executable]
MEASURES = {
    "price": (
        [*IN_A_JOB, "price.py", "--rounds=1", "--block=0.02", "--background=0.5", "--cases=many", "--no-pin"],
        r"\| a timeline beside it \|",
    ),
    "commit": (
        [*IN_A_JOB, "commit.py", "--network=resnet18", "--batch=1", "--pairs=2"],
        r"rank 0: resnet18, batch 1, 22.3 million numbers of state: a step ",
    ),
    "sharded": (
        [*IN_A_JOB, "sharded.py", "--layers=1", "--width=64", "--rounds=2"],
        r"\| DDP, ZeroRedundancyOptimizer \| 0 \|",
    ),
    "jax_chain": (
        [sys.executable, "jax_chain.py", "--ranks", "2", "--rounds=1", "--seconds=0", "--chains", "1"],
        r"\| 4 KiB x 1 \| \d+\.\d+ \|",
    ),
    "elastic": (
        [sys.executable, "elastic.py", "--parts=many", "--workers=4"],
        r"\| kill -9 of one of 4 bare processes \| p50 ",
    ),
}
"""The commands of a developer, and parts of their output."""


@pytest.mark.heavy
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n == "sharded" else n for n in MEASURES])
def test_benchmark_prints_results(name: str, tmp_path: Path) -> None:
    command, printed = MEASURES[name]
    if name == "jax_chain":
        pytest.importorskip("jax")
    command = [str(FOLDER / argument) if argument.endswith(".py") else argument for argument in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(printed, done.stdout), done.stdout
