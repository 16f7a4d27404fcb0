"""The example for Spark, as a user runs it, on executors of its own."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.heavy
@pytest.mark.parametrize("options", [[], ["--elastic"]], ids=["fixed", "elastic"])
def test_digits(tmp_path, options):
    for name in ("torch", "sklearn", "pyspark"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed (scripts/install-system-packages.sh)")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/spark/pytorch_digits.py"), *options],
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"test accuracy (0\.\d+) on 2 ranks; the driver has the model, 9610 parameters", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) >= 0.94
