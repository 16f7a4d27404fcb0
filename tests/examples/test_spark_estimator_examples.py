"""The examples of estimators on Spark, run as a user runs them: ranks are tasks of Spark on this host."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT

pytest.importorskip("pyspark")
pytest.importorskip("torch")
pytest.importorskip("sklearn")


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["torch", "keras", "lightning"])
def test_digits_are_learnt(name: str, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    if not importlib.util.find_spec(name):
        pytest.skip(f"could not import '{name}'")
    ran = subprocess.run(
        [sys.executable, str(ROOT / f"examples/spark/{name}_digits.py"), "--store", f"{tmp_path}/store"],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": "torch", "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.search(r"held-out accuracy ([\d.]+) on 359 images", ran.stdout)
    assert found, ran.stdout
    assert float(found[1]) > 0.92
    # Data sets are removed; runs stay, and what the program has saved.
    assert set(os.listdir(tmp_path / "store")) <= {"runs", "pipeline"}
