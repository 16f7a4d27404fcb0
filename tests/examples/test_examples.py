"""The examples, run as a user runs them: through horovodrun, on two workers, from another folder."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
for name in ("sklearn", "tqdm"):
    if importlib.util.find_spec(name) is None:  # importing it takes seconds
        pytest.skip(f"{name} is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples/pytorch/digits.py"
CHAR_GPT = ROOT / "examples/pytorch/char_gpt.py"
NEWCOMER = Path(__file__).with_name("newcomer.py")
HASH = re.compile(r"parameters identical on all (\d+) ranks: sha256 ([0-9a-f]{16})")


def launch(
    folder: Path, script: Path, *args: object, workers: int = 2, timeout: float = 150, fails: bool = False
) -> tuple[str, str]:
    """Runs the script on `workers` workers; its (stdout, stderr). Ends the whole job when it takes too long."""
    command = [
        sys.executable,
        "-m",
        "horovod.runner",
        "-np",
        str(workers),
        sys.executable,
        str(script),
        *map(str, args),
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        pytest.fail(f"{script.name} took more than {timeout} s\n{out[-3000:]}\n{err[-3000:]}")
    assert (process.returncode != 0) == fails, f"exit code {process.returncode}\n{out[-3000:]}\n{err[-3000:]}"
    return out, err


def identical_parameters(out: str, workers: int = 2) -> str:
    found = HASH.findall(out)
    assert len(found) == 1, out
    assert int(found[0][0]) == workers
    return str(found[0][1])


def test_digits_learns_and_resumes(tmp_path: Path) -> None:
    out, err = launch(tmp_path, DIGITS, "--epochs", 6, "--lr", 0.05)
    final = re.search(r"final held-out accuracy ([\d.]+) on 359 images", out)
    assert final, out
    assert float(final[1]) >= 0.93
    first = identical_parameters(out)
    epochs = re.findall(
        r"epoch +(\d+)/6  loss ([\d.]+)  .*held-out accuracy ([\d.]+)  images/s ([\d,]+) per worker, ([\d,]+)",
        out + err,
    )
    assert [int(epoch[0]) for epoch in epochs] == [1, 2, 3, 4, 5, 6], out
    assert float(epochs[-1][1]) < float(epochs[0][1]) / 2
    bars = re.findall(r"\[(\d)\]<stderr>:[^\n\r]*epoch \d/6:", err)
    assert set(bars) == {"0"}, "the progress bar comes from rank 0 and from no other"

    checkpoint = tmp_path / "runs/digits.pt"
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 6
    assert sorted(p.name for p in checkpoint.parent.iterdir()) == ["digits.pt"]

    # Nothing left to do: the resumed run holds what the first one ended with, on rank 1 too, which never sees the file.
    out, _ = launch(tmp_path, DIGITS, "--epochs", 6, "--lr", 0.05, "--resume", "--no-progress")
    assert "after epoch 6" in out
    assert identical_parameters(out) == first
    out, err = launch(tmp_path, DIGITS, "--epochs", 8, "--resume", "--no-progress")
    assert re.findall(r"epoch +(\d+)/8", out + err) == ["7", "8"]
    assert identical_parameters(out) != first
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 8


@pytest.mark.heavy  # as the digits do
def test_char_gpt_learns_and_resumes(tmp_path: Path) -> None:
    small = ["--layers", 2, "--width", 64, "--corpus", 200_000, "--log-every", 10, "--no-progress"]
    out, err = launch(tmp_path, CHAR_GPT, "--steps", 40, *small)
    losses = [float(x) for x in re.findall(r"step +\d+/40  loss ([\d.]+)", out + err)]
    assert len(losses) == 5
    assert 4.0 < losses[0] < 5.2, losses
    assert losses[-1] < losses[0] - 1.0, losses
    identical_parameters(out)

    out, err = launch(tmp_path, CHAR_GPT, "--steps", 50, "--resume", *small)
    assert "resumed from runs/char_gpt.pt after step 40" in out
    resumed = [float(x) for x in re.findall(r"step +\d+/50  loss ([\d.]+)", out + err)]
    assert resumed[0] < losses[0] - 1.0, "the resumed run started over"
    assert torch.load(tmp_path / "runs/char_gpt.pt", weights_only=True)["step"] == 50
    identical_parameters(out)


def test_a_newcomers_script_runs_unchanged(tmp_path: Path) -> None:
    out, _ = launch(tmp_path, NEWCOMER)
    accuracies = [float(x) for x in re.findall(r"Accuracy: ([\d.]+)%", out)]
    assert len(accuracies) == 4, out
    assert accuracies[-1] > 75, out
    assert len(list(tmp_path.glob("checkpoint-*.pt"))) == 4
