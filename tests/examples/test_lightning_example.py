"""The example of PyTorch Lightning learns, goes on from its checkpoint, and ends with what has failed."""

import re

import pytest

pytest.importorskip("lightning.pytorch")
pytest.importorskip("sklearn")

from tests.examples.test_examples import ROOT, launch

EXAMPLE = ROOT / "examples/pytorch/lightning_digits.py"
LAST = re.compile(r"2 ranks, (\d+) epochs  accuracy (0\.\d+)  loss (\d\.\d+)")


@pytest.mark.heavy
def test_it_learns_and_resumes(tmp_path):
    out, _ = launch(tmp_path, EXAMPLE, "--epochs", 6)
    epochs, accuracy, loss = LAST.search(out).groups()
    assert (epochs, float(accuracy) > 0.85) == ("6", True), out
    (tmp_path / "other").mkdir()  # it goes on with the file alone
    out, _ = launch(tmp_path / "other", EXAMPLE, "--epochs", 8, "--resume", "../digits/last.ckpt")
    again, _, less = LAST.search(out).groups()
    assert again == "8", out
    assert float(less) < float(loss)
    _, err = launch(tmp_path, EXAMPLE, "--resume", "none.ckpt", fails=True)
    assert "FileNotFoundError: Checkpoint file not found: none.ckpt" in err
    assert "RuntimeError: rank 0 cannot read the checkpoint none.ckpt: FileNotFoundError" in err
