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
from horovod.runner.base.job_result import LaunchError
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
def test_refuses_changed_gradients_and_accepts_cleared_ones(line: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("p.grad = None\np.grad.zero_()\nnorm = p.grad.norm()\n")
    check_source(str(script))
    script.write_text(f"loss.backward()\n{line}\n")
    with pytest.raises(AutoError, match=re.escape(f"{script}:2: ")):
        check_source(str(script))


def test_lr_factor() -> None:
    one = Session()
    one.size = 4
    for one.lr_scale, factor in (("none", 1), ("linear", 4), ("sqrt", 2)):
        assert one.lr_factor == factor


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [1, 5, 6, 7, 12, 16])
def test_shards_are_the_batches_of_one_process(samples: int, drop_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import BatchSampler, SequentialSampler

    from horovod.auto.torch import Shards

    monkeypatch.setattr(session, "size", RANKS)
    expected = list(BatchSampler(SequentialSampler(range(samples)), 2 * RANKS, drop_last))
    parts: list[list[tuple[list[int], Any]]] = []
    for rank in range(RANKS):
        monkeypatch.setattr(session, "rank", rank)
        shards = Shards(BatchSampler(SequentialSampler(range(samples)), 2, drop_last))
        shards.training = True
        parts.append([(own, shards.batch(index)) for index, own in enumerate(shards)])
        assert len(shards) == len(expected) == len(parts[-1])
    for index, batch in enumerate(expected):
        counted = [own[: size.own] for own, size in (part[index] for part in parts)]
        assert sorted(itertools.chain(*counted)) == batch
        assert all(own for own, _ in (part[index] for part in parts))  # ranks without samples get one of weight 0
        assert sum(part[index][1].weight for part in parts) == pytest.approx(1)


def test_reductions_with_custom_divisors() -> None:
    import torch
    from torch.nn import functional

    from horovod.auto.gradients import _reductions

    weight = torch.ones(3, 5, requires_grad=True)
    outputs, target = torch.ones(4, 3) @ weight, torch.tensor([0, 1, 1, -100])
    squares = outputs.pow(2)
    losses = {
        "mean": (squares.mean() / 2 + 0.1 * weight.pow(2).sum(), []),
        "plain classes": (functional.cross_entropy(outputs, target.clamp(0)), []),
        "sum": (-0.5 * squares.sum() + functional.mse_loss(outputs, torch.ones(4, 5), reduction="sum"), [None, None]),
        "divided": (squares.sum() / 4 / 2, [8.0]),
        "weighted": (functional.cross_entropy(outputs, target, torch.tensor([1.0, 2, 1, 1, 1])), [5.0]),
        "tokens": (functional.cross_entropy(outputs.repeat(2, 1), target.repeat(2)), [6.0]),
    }
    for name, (loss, divisors) in losses.items():
        assert [divisor for _, divisor, _ in _reductions((loss,), 4)] == divisors, name


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.heavy
def test_refusals_name_the_line(tmp_path: Path) -> None:
    text = run([sys.executable, "-m", "horovod.auto", str(HERE / "refusals.py")], tmp_path)
    pattern = r"^(.*?): horovod\.auto: \S*refusals\.py:\d+: --auto cannot train this script correctly: (.*)$"
    refused = dict(re.findall(pattern, text, re.M))
    assert {name: why.partition(";")[0] for name, why in refused.items()} == {
        "sampler": "the order of Backwards is unknown",
        "batch sampler": "the order of Backwards is unknown",
        "replicas": "its DistributedSampler has other ranks than this job",
        "noise": "it draws noise for 4 samples, but the last batch has fewer",
        "iterable": "it trains on an IterableDataset that does not divide its samples among workers",
        "gradients": "it changes gradients before they are reduced",
        "no loader": "it trains outside a loop over a DataLoader",
        "evaluation": "a loop over a DataLoader does not call backward() for each batch, so it seems to evaluate",
        "length": "it asked for the length of a DataLoader before it was known that this one evaluates",
        "length after training": "it asked for the length of a DataLoader before it was known that this one evaluates",
        "process": "it starts a process on every rank",
        "devices": "it uses several devices in one process",
        "distributed": "it is a distributed program",
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


# Accepted relative differences in float64 after 50 steps or more, and in float32 after the first, if they are not 1e-9
# and 1e-5. Keras on PyTorch multiplies matrices in float32, even with floatx float64. On bfloat16, rounding depends on
# the batch.
TOLERANCES = {"amp_cpu": (1e-9, 1e-4), "keras_fit": (1e-6, 1e-5), "keras_functional": (1e-6, 1e-5)}
FILES = {
    "hugging_face_style": "hugging_face_style.{}/pytorch_model.bin",
    "keras_fit": "keras_fit.{}.keras.npz",
    "keras_functional": "keras_functional.{}.keras.npz",
}
SOME = ["language_model", "translation", "keras_fit", "hugging_face_style"]
MORE = ["classification", "gan", "amp_cpu", "vae", "diffusion", "batch_norm_cnn", "imbalanced"]
MORE += ["wgan_gp", "regression_sampler", "stream", "keras_functional"]
# Evaluation and training losses in the output.
EXACT = [r"test set: average loss (\S{10})", r"validation perplexity (\S{9})", r"'accuracy': \S+", r"best epoch \d"]
EXACT += [r"val accuracy (\S+)", r"mean train loss (\S+)"]


@pytest.mark.parametrize(
    "names",
    [pytest.param(SOME, marks=pytest.mark.heavy, id="some"), pytest.param(MORE, marks=pytest.mark.long, id="more")],
)
def test_scripts_equal_one_process(names: list[str], tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "run_scripts.py")]
    one = run([*program, "one", "1", *names], tmp_path)
    many = run(["horovodrun", "--auto", "-np", "2", *program, "many", "2", *names], tmp_path)
    for script in names:
        for dtype, tolerance in zip(("float64", "float32"), TOLERANCES.get(script, (1e-9, 1e-5)), strict=True):
            file = FILES.get(script, script + ".{}").format(dtype)
            expected, got = (tensors(tmp_path / folder / file) for folder in ("one", "many"))
            assert expected.keys() == got.keys()
            worst = 0.0
            for name, value in expected.items():
                difference = np.abs(value - got[name])
                # The gradient of a key's bias consists of rounding errors, which Adam divides by their own size.
                if name.endswith("in_proj_bias") and dtype == "float32":
                    difference[len(value) // 3 : 2 * len(value) // 3] = 0
                worst = max(worst, float(difference.max() / np.abs(value).max()))
            print(f"{script} {dtype} {worst:.1e}")
            assert worst <= tolerance, (script, dtype)
    assert not re.search(r"\[[1-9]\d*\]<stdout>", many)  # only rank 0 prints
    found = [re.findall(pattern, one) for pattern in EXACT]
    assert any(found)
    assert found == [re.findall(pattern, many) for pattern in EXACT]
    assert re.search(r"\.py:\d+: DataLoader: \d+ batches of (12|15|24|30) samples on each rank", many)
