"""The examples, run as a user would: through horovodrun, on two workers, from another folder."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
for name in ("sklearn", "tqdm"):
    if importlib.util.find_spec(name) is None:  # importing it would take seconds
        pytest.skip(f"{name} is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "pytorch/digits.py"
CHAR_GPT = EXAMPLES / "pytorch/char_gpt.py"
NEWCOMER = Path(__file__).with_name("newcomer.py")
HASH = re.compile(r"parameters identical on all (\d+) ranks: sha256 ([0-9a-f]{16})")


def needs(*modules: str) -> None:
    """Skip the test where a module is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"could not import '{module}'")


def execute(
    command: list[object], folder: Path, timeout: float, fails: bool = False, **environ: str
) -> tuple[str, str]:
    """Return (stdout, stderr) of a program, which is killed with its processes after a timeout."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
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
        pytest.fail(f"{command} took more than {timeout} s\n{out[-3000:]}\n{err[-3000:]}")
    assert (process.returncode != 0) == fails, f"exit code {process.returncode}\n{out[-3000:]}\n{err[-3000:]}"
    return out, err


def launch(
    folder: Path, script: Path, *args: object, workers: int = 2, timeout: float = 150, fails: bool = False, **env: str
) -> tuple[str, str]:
    """Return (stdout, stderr) of a script on `workers` workers."""
    command = ["-m", "horovod.runner", "-np", workers, sys.executable, script, *args]
    return execute(command, folder, timeout, fails, **env)


def identical_parameters(out: str, workers: int = 2) -> None:
    found = HASH.findall(out)
    assert len(found) == 1, out
    assert int(found[0][0]) == workers


def accuracy(out: str) -> float:
    return float(re.findall(r"held-out accuracy ([\d.]+)", out)[-1])


LEARNS = {  # by frontend: the example with its arguments, required modules, and the accuracy that it reaches
    "numpy": (["numpy/sgd_classifier.py"], [], 0.93),
    "tensorflow": (["tensorflow/tf2_digits.py"], ["tensorflow"], 0.95),
    "jax": (["jax/digits.py", "--epochs", "4"], ["jax", "optax"], 0.8),
}


@pytest.mark.parametrize("frontend", LEARNS)
def test_an_example_learns(tmp_path: Path, frontend: str) -> None:
    (script, *args), modules, reached = LEARNS[frontend]
    needs(*modules)
    out, _ = launch(tmp_path, EXAMPLES / script, *args, timeout=300)
    assert accuracy(out) >= reached
    identical_parameters(out)


def test_digits_learns_and_resumes(tmp_path: Path) -> None:
    out, err = launch(tmp_path, DIGITS, "--epochs", 6, "--lr", 0.05)
    assert accuracy(out) >= 0.93
    identical_parameters(out)
    losses = re.findall(r"epoch +\d/6  loss ([\d.]+) ", out + err)
    assert len(losses) == 6, out
    assert float(losses[-1]) < float(losses[0]) / 2
    bars = re.findall(r"\[(\d)\]<stderr>:[^\n\r]*epoch \d/6:", err)
    assert set(bars) == {"0"}, "the progress bar comes from rank 0 and from no other"
    assert sorted(path.name[-6:] for path in (tmp_path / "runs/digits").iterdir()) == ["4.ckpt", "5.ckpt", "6.ckpt"]

    # It resumes from the state in which the first run ended.
    out, err = launch(tmp_path, DIGITS, "--epochs", 8, "--lr", 0.05, "--resume", "--no-progress")
    epochs = re.findall(r"epoch +(\d+)/8  loss ([\d.]+) ", out + err)
    assert [number for number, _ in epochs] == ["7", "8"]
    assert float(epochs[0][1]) < float(losses[0]) / 2
    identical_parameters(out)


@pytest.mark.heavy  # like the digits example
def test_char_gpt_learns_and_resumes(tmp_path: Path) -> None:
    small = ["--layers", 2, "--width", 64, "--corpus", 200_000, "--log-every", 10, "--no-progress"]
    out, err = launch(tmp_path, CHAR_GPT, "--steps", 40, *small)
    losses = [float(x) for x in re.findall(r"step +\d+/40  loss ([\d.]+)", out + err)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 1.0, losses
    identical_parameters(out)

    out, err = launch(tmp_path, CHAR_GPT, "--steps", 50, "--resume", *small)
    assert "resumed from runs/char_gpt after step 40" in out
    resumed = [float(x) for x in re.findall(r"step +\d+/50  loss ([\d.]+)", out + err)]
    assert resumed[0] < losses[0] - 1.0, "the resumed run started over"
    identical_parameters(out)


LARGE_GPT = EXAMPLES / "pytorch/large_gpt.py"
# Parameters, gradients and Adam's state take 0.77 GiB, and PyTorch itself 0.2 GiB.
LARGE = ["--layers", 4, "--memory", 0.92, "--steps"]


def train_large_gpt(folder: Path, method: str) -> None:
    out, _ = launch(folder, LARGE_GPT, "--method", method, *LARGE, 6, workers=3)
    losses = [float(x) for x in re.findall(r"step +\d+/6  loss ([\d.]+)", out)]
    assert len(losses) == 6, out
    assert losses[-1] < losses[0] - 0.8, out


@pytest.mark.heavy
def test_a_large_gpt_fits_in_the_memory_of_several_workers(tmp_path: Path) -> None:
    _, err = launch(tmp_path, LARGE_GPT, "--plain", *LARGE, 1, workers=1, fails=True)
    assert "can't allocate memory" in err
    train_large_gpt(tmp_path, "sharded")


@pytest.mark.long
@pytest.mark.parametrize("method", ["sharded", "fsdp"])
def test_a_large_gpt_resumes_with_fewer_workers(tmp_path: Path, method: str) -> None:
    train_large_gpt(tmp_path, method)
    out, _ = launch(tmp_path, LARGE_GPT, "--method", method, "--resume", *LARGE, 7, "--memory", 1.2)
    assert "6 steps done" in out
    resumed = [float(x) for x in re.findall(r"step +\d+/7  loss ([\d.]+)", out)]
    assert len(resumed) == 1
    assert resumed[0] < 4.7, out  # 5.4 at first


@pytest.mark.heavy
def test_strategies_learn(tmp_path: Path) -> None:
    script = EXAMPLES / "strategies/compare.py"
    out, _ = launch(tmp_path, script, "--samples", 6000, "--every", 5, "--slow", 1, workers=3)
    losses = [float(x) for x in re.findall(r"held-out loss ([\d.]+)", out)]
    assert len(losses) == 7, out
    assert max(losses) < 1.0, out  # 2.3 before training


def test_a_newcomers_script_runs_unchanged(tmp_path: Path) -> None:
    out, _ = launch(tmp_path, NEWCOMER)
    accuracies = [float(x) for x in re.findall(r"Accuracy: ([\d.]+)%", out)]
    assert len(accuracies) == 4, out
    assert accuracies[-1] > 75, out
    assert len(list(tmp_path.glob("checkpoint-*.pt"))) == 4


@pytest.mark.heavy
def test_clustering_digits_of_both_workers(tmp_path: Path) -> None:
    out, _ = launch(tmp_path, EXAMPLES / "numpy/kmeans.py")
    found = re.search(r"(?s)nearest of 10 centres ([\d.]+).*homogeneity of the clusters ([\d.]+)", out)
    assert found, out
    assert float(found[1]) < 2.8  # 4.7 with one centre for all
    assert float(found[2]) > 0.65
    identical_parameters(out)


@pytest.mark.heavy  # tests/tensorflow/test_session.py covers such sessions
@pytest.mark.parametrize(
    ("workers", "options"),
    [pytest.param(2, [], id="2"), pytest.param(4, ["--reference-variables"], id="4-reference", marks=pytest.mark.long)],
)
def test_a_session_resumes_from_the_checkpoint_of_rank_0(tmp_path: Path, workers: int, options: list[str]) -> None:
    needs("tensorflow")
    script = EXAMPLES / "tensorflow/session_mnist_style.py"
    out, err = launch(tmp_path, script, *options, workers=workers)
    assert accuracy(out) >= 0.95
    identical_parameters(out, workers)
    # Written by rank 0 alone, at the step where all ranks stopped.
    done = 1200 // workers
    assert (tmp_path / f"checkpoints/model.ckpt-{done}.index").exists()
    assert not re.search(r"\[[1-9]\]<stderr>:.*Saving checkpoints", err)

    # Only rank 0 reads the checkpoint, which says that only two steps are left.
    out, err = launch(tmp_path, script, *options, "--steps", (done + 2) * workers, workers=workers)
    identical_parameters(out, workers)
    assert f"Saving checkpoints for {done + 2} into" in err
    assert "Saving checkpoints for 0 into" not in err


# A program without Horovod loads the example's model and predicts.
WITHOUT_HOROVOD = """
import json, sys
import keras, numpy as np
from sklearn.datasets import load_digits
model = keras.models.load_model(sys.argv[1])
digits = load_digits()
logits = model.predict((digits.images[..., None] / 16.0).astype("float32"), verbose=0)
print(json.dumps([
    float((logits.argmax(1) == digits.target).mean()),
    type(model.optimizer).__name__,
    int(model.optimizer.iterations),
    any(name.split(".")[0] == "horovod" for name in sys.modules),
]))
"""


# tests/keras covers the other backends.
def test_a_keras_model_loads_without_horovod(tmp_path: Path) -> None:
    needs("keras", "tensorflow")
    environ = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    out, _ = launch(tmp_path, EXAMPLES / "keras/digits.py", timeout=300, **environ)
    assert accuracy(out) >= 0.95
    assert re.search(r"held-out loss [\d.]+, equal on all 2 ranks", out), out
    identical_parameters(out)
    assert [path.name for path in tmp_path.iterdir()] == ["digits.keras"]
    output, _ = execute(["-c", WITHOUT_HOROVOD, "digits.keras"], tmp_path, 120, PYTHONPATH="", **environ)
    reached, *rest = json.loads(output.splitlines()[-1])
    assert reached >= 0.95
    assert rest == ["Adam", 10 * 23, False]  # 1437 images, half of them on each worker, 32 in a batch


@pytest.mark.heavy
def test_lightning_learns_and_resumes(tmp_path: Path) -> None:
    needs("lightning")
    script = EXAMPLES / "pytorch/lightning_digits.py"
    last = re.compile(r"2 ranks, (\d+) epochs  accuracy (0\.\d+)  loss (\d\.\d+)")
    out, _ = launch(tmp_path, script, "--epochs", 6)
    epochs, reached, loss = last.findall(out)[0]
    assert (epochs, float(reached) > 0.85) == ("6", True), out
    (tmp_path / "other").mkdir()  # it resumes from the file alone
    out, _ = launch(tmp_path / "other", script, "--epochs", 8, "--resume", "../digits/last.ckpt")
    again, _, less = last.findall(out)[0]
    assert again == "8", out
    assert float(less) < float(loss)
    _, err = launch(tmp_path, script, "--resume", "none.ckpt", fails=True)
    assert "RuntimeError: rank 0 cannot read the checkpoint none.ckpt: FileNotFoundError" in err


JOB = r"test accuracy (0\.\d+) on 2 ranks; the driver has the model, 9610 parameters"
ESTIMATOR = r"held-out accuracy ([\d.]+) on 359 images"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("framework", "script", "printed"),
    [
        ("torch", "pytorch_digits.py", JOB),
        ("torch", "pytorch_digits.py --elastic", JOB),
        ("torch", "torch_digits.py --store store", ESTIMATOR),
        ("keras", "keras_digits.py --store store", ESTIMATOR),
        ("lightning", "lightning_digits.py --store store", ESTIMATOR),
    ],
)
def test_ranks_in_tasks_of_spark_learn(tmp_path: Path, framework: str, script: str, printed: str) -> None:
    needs("pyspark", framework)
    if shutil.which("java") is None:
        pytest.skip("Java is not installed (scripts/install-system-packages.sh)")
    environ = {"KERAS_BACKEND": "torch", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "spark")}
    script, *args = script.split()
    args = [str(tmp_path / argument) if argument == "store" else argument for argument in args]
    command = [EXAMPLES / "spark" / script, *args]
    out, _ = execute(command, tmp_path, 550, PYSPARK_PYTHON=sys.executable, **environ)
    found = re.search(printed, out)
    assert found, out
    assert float(found[1]) > 0.92
    if args[:1] == ["--store"]:  # data sets are removed; runs and saved files stay
        assert set(os.listdir(tmp_path / "store")) <= {"runs", "pipeline"}


def with_ray(folder: Path, script: str, *args: str) -> str:
    """Return the output of an example for Ray, whose own files go to a temporary folder."""
    needs("ray")
    with tempfile.TemporaryDirectory(prefix="hvd-ray-", dir="/tmp", ignore_cleanup_errors=True) as own:  # short
        environ = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": own}
        return execute([EXAMPLES / "ray" / script, *args], folder, 400, **environ)[0]


@pytest.mark.long  # beside the tests of tests/ray, a second Ray starts too slowly
@pytest.mark.parametrize("args", [(), ("--elastic",)])
def test_actors_of_ray_learn(tmp_path: Path, args: tuple[str, ...]) -> None:
    out = with_ray(tmp_path, "digits.py", *args)
    assert "on 360 images, on each of 2 ranks" in out
    assert accuracy(out) >= 0.92


@pytest.mark.long
def test_ray_train_resumes_after_a_worker_is_killed(tmp_path: Path) -> None:
    out = with_ray(tmp_path, "train_digits.py", "--fail-at", "3")
    # The checkpoint of the last epoch may be missing.
    assert re.search(r"on 360 images after epoch 9, begun at epoch [1-3]$", out, re.M), out
    assert accuracy(out) >= 0.92


@pytest.mark.long
def test_a_study_of_ray_tune_ends_with_a_table(tmp_path: Path) -> None:
    out = with_ray(tmp_path, "tune_digits.py", "--batches", "32", "--epochs", "4", "--at-once", "1")
    table = re.findall(r"^ +(0\.1|0\.01) +32 +[\d.]+ +([\d.]+)$", out, re.MULTILINE)
    assert [lr for lr, _ in table] == ["0.1", "0.01"], out  # the better one first
    assert float(table[0][1]) > 0.85
