"""Lightning under horovodrun."""

import importlib.util

import pytest

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


@pytest.mark.heavy
def test_lightning_over_the_backend():
    needs("lightning")
    out = run(
        f"""{MODULE}
from lightning.pytorch.strategies import DDPStrategy
model = Net()
strategy = DDPStrategy(process_group_backend="hvd")
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=strategy, {QUIET})
trainer.fit(model, data)
weights = [None, None]
dist.all_gather_object(weights, model.layer.weight.tolist())
print("same", weights[0] == weights[1], dist.get_backend(), trainer.world_size)
"""
    )
    assert out.count("same True hvd 2") == 2, out


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
