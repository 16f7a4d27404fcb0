"""Programs of Accelerate, the Hugging Face Trainer and Lightning under horovodrun."""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.documents import programs
from tests.runner.launching import python, run_job

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
QUIET = "logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, max_steps=3"
MODULE = """
import torch, torch.distributed as dist, lightning.pytorch as pl
import horovod.torch as hvd

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.arange(64.0).view(16, 4), 2)
"""


def run(code):
    done = run_job(["-np", "2", *python(code)], environment=dict.fromkeys(NAMES))
    assert done.code == 0, done.err
    return done.out


def needs(package):
    if not importlib.util.find_spec(package):
        pytest.skip(f"could not import '{package}'")


def equal_weights(out):
    weights = [float(one) for one in re.findall(r"weights \[+([\d.]+)", out)]
    assert len(weights) == 2, out
    assert weights[0] == weights[1]
    assert abs(weights[0] - 3) < 0.1


def low_loss(out):
    losses = [float(one) for one in re.findall(r"hvd loss ([\d.]+)", out)]
    assert len(losses) == 2, out
    assert max(losses) < 4.5, "ln(256) is 5.5"


CHECKS = {  # by program of docs/pytorch/huggingface.md: the package, and a check of the output
    "accelerate": ("accelerate", equal_weights),
    "trainer": ("transformers", low_loss),
    "lightning": ("lightning", equal_weights),
}


def test_every_program_is_known():
    assert set(programs("distributed")) == set(CHECKS)


@pytest.mark.heavy
@pytest.mark.parametrize("name", CHECKS)
def test_a_program_runs_over_the_backend(name, tmp_path, monkeypatch):
    package, check = CHECKS[name]
    needs(package)
    monkeypatch.chdir(tmp_path)
    out = run(programs("distributed")[name].text)
    assert out.count("ranks 2 hvd") == 2, out
    check(out)


@pytest.mark.long
def test_accelerate_launches_the_program(tmp_path):
    needs("accelerate")
    (tmp_path / "train.py").write_text(programs("distributed")["accelerate"].text)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines=1", "--mixed_precision=no"]
    launch += ["--dynamo_backend=no", "--multi_gpu", "--num_processes=2", "train.py"]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    equal_weights(done.stdout)


@pytest.mark.heavy
def test_lightning_in_a_horovod_script_does_not_start_torch_distributed():
    needs("lightning")
    out = run(
        f"""{MODULE}
hvd.init()
trainer = pl.Trainer(accelerator="cpu", devices=1, {QUIET})
trainer.fit(Net(), data)
print("started", dist.is_initialized(), trainer.world_size)
"""
    )
    assert out.count("started False 1") == 2, out


@pytest.mark.heavy
def test_accelerate_and_the_trainer_in_a_horovod_script_do_not_start_torch_distributed():
    needs("transformers")
    out = run(
        """
import torch, torch.distributed as dist
import horovod.torch as hvd
from accelerate import Accelerator
from transformers import TrainingArguments

hvd.init()
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1))
processes = accelerator.num_processes  # TrainingArguments resets the state of Accelerate
arguments = TrainingArguments("output", use_cpu=True, report_to="none")
print("started", dist.is_initialized(), processes, arguments.world_size, type(model).__name__)
"""
    )
    assert out.count("started False 1 1 Linear") == 2, out
