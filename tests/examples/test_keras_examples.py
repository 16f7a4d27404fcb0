"""The example for Keras, run as a user runs it, on each of Keras' backends."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, identical_parameters, launch

pytest.importorskip("keras", minversion="3.0")

DIGITS = ROOT / "examples/keras/digits.py"

# A program that knows nothing of us: what is in the file, and does it predict?
PLAIN = """
import json, sys
import keras, numpy as np
from sklearn.datasets import load_digits
model = keras.models.load_model(sys.argv[1])
digits = load_digits()
logits = model.predict((digits.images[..., None] / 16.0).astype("float32"), verbose=0)
print(json.dumps({
    "accuracy": float((logits.argmax(1) == digits.target).mean()),
    "optimizer": type(model.optimizer).__name__,
    "iterations": int(model.optimizer.iterations),
    "horovod": any(name.split(".")[0] == "horovod" for name in sys.modules),
}))
"""


# What differs between the backends is in tests/keras; here it is the example.
@pytest.mark.parametrize(
    "backend", ["tensorflow", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("torch", "jax"))]
)
def test_the_digits_are_learnt_and_the_model_loads_without_us(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not importlib.util.find_spec(backend):
        pytest.skip(f"{backend} is not installed")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    out, _ = launch(tmp_path, DIGITS, timeout=300)
    accuracy = re.search(r"final held-out accuracy ([\d.]+) on 360 images", out)
    assert accuracy, out
    assert float(accuracy[1]) >= 0.95
    assert re.search(r"held-out loss [\d.]+, equal on all 2 ranks", out), out
    identical_parameters(out)
    losses = [float(loss) for loss in re.findall(r"epoch +\d+/10  loss ([\d.]+)", out)]
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.keras"]

    plain = subprocess.run(
        [sys.executable, "-c", PLAIN, "digits.keras"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert plain.returncode == 0, plain.stderr
    told = json.loads(plain.stdout.splitlines()[-1])
    assert told["accuracy"] >= 0.95
    assert told["optimizer"] == "Adam"
    assert told["iterations"] == 10 * 23  # 1437 images, half of them on each worker, 32 in a batch
    assert not told["horovod"]
