"""The examples for Ray, run as a user runs them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT

for name in ("ray", "torch", "sklearn"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"could not import '{name}'", allow_module_level=True)


def run(folder: Path, *words: str) -> str:
    """What it prints. Ray's own files go where they are removed."""
    with tempfile.TemporaryDirectory(prefix="hvd-ray-", dir="/tmp", ignore_cleanup_errors=True) as own:  # short
        environ = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": own}
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples/ray" / words[0]), *words[1:]],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.heavy
@pytest.mark.parametrize("words", [(), ("--elastic",)])
def test_digits_reach_an_accuracy(tmp_path: Path, words: tuple[str, ...]) -> None:
    out = run(tmp_path, "digits.py", *words)
    accuracy = re.search(r"final held-out accuracy ([\d.]+) on 360 images, on each of 2 ranks", out)
    assert accuracy, out
    assert float(accuracy[1]) >= 0.92
    assert len(re.findall(r"epoch +\d+  loss [\d.]+  held-out accuracy", out)) == 20


@pytest.mark.heavy
def test_ray_train_goes_on_where_it_was_when_a_worker_is_killed(tmp_path: Path) -> None:
    out = run(tmp_path, "train_digits.py", "--fail-at", "3")
    told = re.search(
        r"final held-out accuracy ([\d.]+) on 360 images after epoch 9, begun at epoch ([1-3])$", out, re.M
    )
    assert told, out  # the checkpoint of the last epoch may not have been kept yet
    assert float(told[1]) >= 0.92


@pytest.mark.heavy
def test_a_study_ends_with_a_table(tmp_path: Path) -> None:
    out = run(tmp_path, "tune_digits.py", "--batches", "32", "--epochs", "4", "--at-once", "1")
    table = re.findall(r"^ +(0\.1|0\.01) +32 +[\d.]+ +([\d.]+)$", out, re.MULTILINE)
    assert [lr for lr, _ in table] == ["0.1", "0.01"], out  # the better one first
    assert float(table[0][1]) > 0.85
