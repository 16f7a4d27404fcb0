"""Functions that ranks of these tests run: a training with Lightning, and the same in one process without it."""

import pathlib

import lightning.pytorch as lightning
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchmetrics import MeanMetric

import horovod.torch as hvd
from horovod.torch.lightning import HorovodStrategy

ROWS, BATCH = 56, 8
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1) + 1
QUIET = {
    "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
    "enable_checkpointing": False,
}  # fmt: skip


def line_of(pl=lightning):
    """Return a LightningModule whose weights differ between ranks."""

    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(hvd.rank())
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
            self.register_buffer("shift", torch.full((1,), float(hvd.rank() + 1)), persistent=False)
            self.seen = MeanMetric()
            self.begun = self.weights()

        def weights(self):
            return torch.cat([p.detach().reshape(-1).clone() for p in self.net.parameters()])

        def training_step(self, batch, number):
            loss = mse_loss(self.net(batch[0])[:, 0] + self.shift, batch[1])
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            self.seen(batch[1])
            self.log("seen", self.seen, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), 0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    return Line()


def loader(x=X, y=Y, batch=BATCH):
    return DataLoader(TensorDataset(x, y), batch)


def fit(folder, epochs, begin=None, pl=lightning, **more):
    """Train, and return the rank's module and Trainer; rank 0 reads the checkpoint ``begin`` of its folder."""
    own = pathlib.Path(folder, str(hvd.rank()))
    own.mkdir(exist_ok=True)
    module = line_of(pl)
    trainer = pl.Trainer(strategy=HorovodStrategy(package=pl), max_epochs=epochs, **{**QUIET, **more})
    trainer.fit(module, loader(), ckpt_path=begin and own / begin)
    trainer.save_checkpoint(own / f"{epochs}.ckpt")
    return module, trainer


def alone(epochs, passes, clip):
    """Train in this process on the batches of both ranks; return the weights and the loss of the last epoch."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    dataset = TensorDataset(X, Y)
    shards = [DistributedSampler(dataset, 2, rank) for rank in range(2)]  # as Lightning does
    for epoch in range(epochs):
        losses = []
        for shard in shards:
            shard.set_epoch(epoch)
        rows = torch.tensor(list(zip(*shards, strict=True))).reshape(-1)
        batches = list(zip(X[rows].split(2 * BATCH), Y[rows].split(2 * BATCH), strict=True))
        for number, (x, y) in enumerate(batches, start=1):
            loss = mse_loss(net(x)[:, 0] + 1, y)
            (loss / passes).backward()
            losses += [loss.item()] * len(x)
            if number % passes == 0 or number == len(batches):
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]), sum(losses) / len(losses)


def train_and_resume(folder):
    """Train three epochs at once, and as one epoch plus two in a restarted program; 4 batches an epoch, 3 a step."""
    options = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}
    whole, trainer = fit(folder, 3, **options)
    first, _ = fit(folder, 1, **options)
    second, resumed = fit(folder, 3, "1.ckpt", **options)
    return {
        "begun": whole.begun, "whole": whole.weights(), "first": first.weights(), "resumed": second.weights(),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "world": (trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.is_global_zero),
        "steps": (trainer.global_step, resumed.global_step), "expected": alone(3, 3, 0.5),
        "files": sorted(path.name for path in pathlib.Path(folder, str(hvd.rank())).iterdir()),
    }  # fmt: skip
