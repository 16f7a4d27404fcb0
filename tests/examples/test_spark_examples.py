"""The examples for Spark, run as a user runs them: ranks are tasks of Spark on this host."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = r"test accuracy (0\.\d+) on 2 ranks; the driver has the model, 9610 parameters"
ESTIMATOR = r"held-out accuracy ([\d.]+) on 359 images"
EXAMPLES = {
    "fixed": ("torch", "pytorch_digits.py", JOB),
    "elastic": ("torch", "pytorch_digits.py", JOB),
    "torch": ("torch", "torch_digits.py", ESTIMATOR),
    "keras": ("keras", "keras_digits.py", ESTIMATOR),
    "lightning": ("lightning", "lightning_digits.py", ESTIMATOR),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", EXAMPLES)
def test_digits_are_learnt(name: str, tmp_path: Path) -> None:
    framework, program, printed = EXAMPLES[name]
    for module in ("pyspark", "torch", "sklearn", framework):
        if not importlib.util.find_spec(module):
            pytest.skip(f"could not import '{module}'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed (scripts/install-system-packages.sh)")
    estimator = printed is ESTIMATOR
    options = ["--store", f"{tmp_path}/store"] if estimator else ["--elastic"] * (name == "elastic")
    own = {"KERAS_BACKEND": "torch", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "spark")}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples/spark" / program), *options],
        cwd=tmp_path,
        env={**os.environ, **own, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.search(printed, ran.stdout)
    assert found, ran.stdout + ran.stderr
    assert float(found[1]) > 0.92
    if estimator:  # data sets are removed; runs stay, and what the program has saved
        assert set(os.listdir(tmp_path / "store")) <= {"runs", "pipeline"}
