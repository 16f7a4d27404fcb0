"""The examples for TensorFlow, run as a user runs them: through horovodrun, from another folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, identical_parameters, launch

pytest.importorskip("tensorflow")

SESSION = ROOT / "examples/tensorflow/session_mnist_style.py"
LOOP = ROOT / "examples/tensorflow/tf2_digits.py"


def accuracy(out: str) -> float:
    found = re.findall(r"final held-out accuracy ([\d.]+) on 360 images", out)
    assert len(found) == 1, out
    return float(found[0])


@pytest.mark.parametrize(("workers", "options"), [(2, []), (4, ["--reference-variables"])], ids=["2", "4-reference"])
@pytest.mark.heavy  # of such sessions: tests/tensorflow/test_session.py
def test_the_session_script_learns_and_goes_on_from_rank_0s_checkpoint(
    tmp_path: Path, workers: int, options: list[str]
) -> None:
    out, err = launch(tmp_path, SESSION, *options, workers=workers)
    assert accuracy(out) >= 0.95
    identical_parameters(out, workers)
    assert re.search(rf"held-out loss [\d.]+, equal on all {workers} ranks", out), out
    # Written by rank 0 alone, at the step where all of them stopped.
    written = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    done = 1200 // workers
    assert f"model.ckpt-{done}.index" in written
    assert "Saving checkpoints for 0 into" in err
    assert not re.search(r"\[[1-9]\]<stderr>:.*Saving checkpoints", err)

    # Only rank 0 reads the checkpoint, and with it that all steps but two are done.
    out, err = launch(tmp_path, SESSION, *options, "--steps", (done + 2) * workers, workers=workers)
    identical_parameters(out, workers)
    assert f"Saving checkpoints for {done + 2} into" in err
    assert "Saving checkpoints for 0 into" not in err


def test_the_tensorflow_2_loop_learns(tmp_path: Path) -> None:
    out, _ = launch(tmp_path, LOOP)
    assert accuracy(out) >= 0.95
    identical_parameters(out)
    losses = [float(loss) for loss in re.findall(r"epoch +\d+/12  loss ([\d.]+)", out)]
    assert len(losses) == 12
    assert losses[-1] < losses[0] / 4
