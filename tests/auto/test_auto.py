"""horovodrun --auto: its command line, its checks, its shards, and unmodified scripts beside one process."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horovod.auto.__main__ import check_source
from horovod.auto.session import AutoError, Session, session
from horovod.runner.base.errors import LaunchError
from horovod.runner.command.command_line import with_auto

HERE = Path(__file__).parent
RANKS = 3


def test_command() -> None:
    auto = ["-m", "horovod.auto", "--lr-scale", "none"]
    assert with_auto(["python", "train.py", "-x"], "none") == ["python", *auto, "train.py", "-x"]
    assert with_auto(["/bin/python3.11", "-u", "-W", "error", "-m", "pkg"], "none")[4:] == [*auto, "-m", "pkg"]
    assert with_auto(["env", "A=1", "python", "t.py"], "sqrt")[2:] == ["python", *auto[:3], "sqrt", "t.py"]
    for command in (["./train.sh"], ["python", "-c", "pass"], ["python"]):
        with pytest.raises(LaunchError, match=r"must precede a command such as `python train\.py`"):
            with_auto(command, "none")


@pytest.mark.parametrize(
    "line", ["p.grad.data.clamp_(-1, 1)", "p.grad += 1", "p.grad = g * 2", "w.grad[0] = 1.5 * x", "p.grad.mul_(2)"]
)
def test_refuses_changed_gradients(line: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"loss.backward()\n{line}\n")
    check = pytest.raises(AutoError, match=re.escape(f"{script}:2: "))
    with check:
        check_source(str(script))


def test_accepts_cleared_gradients(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("p.grad = None\np.grad.zero_()\nnorm = p.grad.norm()\n")
    check_source(str(script))


def test_lr_factor() -> None:
    one = Session()
    one.size = 4
    factors = {}
    for one.lr_scale in ("none", "linear", "sqrt"):
        factors[one.lr_scale] = one.lr_factor
    assert factors == {"none": 1, "linear": 4, "sqrt": 2}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [1, 5, 6, 7, 12, 16])
def test_shards_are_the_batches_of_one_process(samples: int, drop_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import BatchSampler, SequentialSampler

    from horovod.auto.batches import Shards

    monkeypatch.setattr(session, "size", RANKS)
    expected = list(BatchSampler(SequentialSampler(range(samples)), 2 * RANKS, drop_last))
    parts: list[list[tuple[list[int], Any]]] = []
    for rank in range(RANKS):
        monkeypatch.setattr(session, "rank", rank)
        shards = Shards(BatchSampler(SequentialSampler(range(samples)), 2, drop_last))
        shards.training = True
        parts.append([(own, shards.sizes.popleft()) for own in shards])
        assert len(shards) == len(expected) == len(parts[-1])
    for index, batch in enumerate(expected):
        counted = [own[: size.own] for own, size in (part[index] for part in parts)]
        assert sorted(itertools.chain(*counted)) == batch
        assert all(own for own, _ in (part[index] for part in parts))  # ranks without samples get one of weight 0
        assert sum(part[index][1].weight for part in parts) == pytest.approx(1)


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.heavy
def test_refusals_name_the_line(tmp_path: Path) -> None:
    text = run([sys.executable, "-m", "horovod.auto", str(HERE / "refusals.py")], tmp_path)
    refused = dict(
        re.findall(
            r"^(.*?): horovod\.auto: \S*refusals\.py:\d+: --auto cannot train this script correctly: (.*)$", text, re.M
        )
    )
    assert {name: why.partition(";")[0] for name, why in refused.items()} == {
        "sampler": "the order of Backwards is unknown",
        "batch sampler": "the order of Backwards is unknown",
        "iterable": "it trains on an IterableDataset, whose samples cannot be divided",
        "gradients": "gradients were changed between backward() and their reduction",
        "no loader": "it trains outside a loop over a DataLoader",
        "evaluation": "a loop over a DataLoader does not call backward() for each batch, so it seems to evaluate",
        "length": "it asked for the length of a DataLoader before it was known that this one evaluates",
        "process": "it starts a process on every rank",
        "devices": "it uses several devices in one process",
        "distributed": "it is a distributed program already",
    }
    assert "trained" in text


def tensors(path: Path) -> dict[str, np.ndarray]:
    import torch

    if path.suffix == ".npz":
        return {name: value.astype(np.float64) for name, value in np.load(path).items()}
    found = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{name}.{key}", inner)
        elif isinstance(value, torch.Tensor):
            found[name] = value.double().numpy()

    visit("", torch.load(path))
    return found


# Files of a run, and the accepted relative differences in float64 after 50 steps or more, in float32 after the first.
# Keras computes the mean of a loss and products of matrices in float32, even with floatx float64. On bfloat16,
# rounding depends on the batch.
OUTPUTS = {
    "classification.{}": (1e-9, 1e-5),
    "gan.{}": (1e-9, 1e-5),
    "language_model.{}": (1e-9, 1e-5),
    "amp_cpu.{}": (1e-9, 1e-4),
    "hugging_face_style.{}/pytorch_model.bin": (1e-9, 1e-5),
    "keras_fit.{}.keras.npz": (1e-6, 1e-5),
}


@pytest.mark.heavy
def test_scripts_equal_one_process(tmp_path: Path) -> None:
    program = str(HERE / "run_scripts.py")
    one = run([sys.executable, program, "one", "1"], tmp_path)
    many = run(["horovodrun", "--auto", "-np", "2", sys.executable, program, "many", "2"], tmp_path)
    for file, (double, single) in OUTPUTS.items():
        for dtype, tolerance in (("float64", double), ("float32", single)):
            expected, got = (tensors(tmp_path / folder / file.format(dtype)) for folder in ("one", "many"))
            assert expected.keys() == got.keys()
            for name, value in expected.items():
                difference = np.abs(value - got[name])
                if (
                    name.endswith("in_proj_bias") and dtype == "float32"
                ):  # a key's bias has a gradient of rounding errors
                    difference[len(value) // 3 : 2 * len(value) // 3] = 0
                error = float(difference.max() / np.abs(value).max())
                print(f"{file.format(dtype)} {name} {error:.1e}")
                assert error <= tolerance, (file, dtype, name)
    # Evaluation is exact, and only rank 0 prints.
    assert not re.search(r"\[[1-9]\d*\]<stdout>", many)
    for pattern in (
        r"test set: average loss (\S{10})",
        r"validation perplexity (\S{9})",
        r"'accuracy': \S+",
        r"best epoch \d",
    ):
        assert re.findall(pattern, one) == re.findall(pattern, many) != []
    assert re.search(r"classification\.py:\d+: DataLoader: 24 batches of 30 samples on each rank", many)
    assert re.search(r"touched: 14 optimizers, 10 DataLoaders", many)
