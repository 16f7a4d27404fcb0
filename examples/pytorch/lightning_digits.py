"""Train a LightningModule on handwritten digits with Horovod's strategy for PyTorch Lightning.

    horovodrun -np 2 python examples/pytorch/lightning_digits.py
    horovodrun -np 2 python examples/pytorch/lightning_digits.py --epochs 20 --resume digits/last.ckpt

The strategy is the only part that is specific to Horovod: it gives each rank a part of the data, makes the weights
    equal before training begins, and averages gradients, logged values and metrics. Rank 0 writes and reads the
    checkpoints.
"""

from __future__ import annotations

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import horovod.torch as hvd
from horovod.torch.lightning import HorovodStrategy


class Reader(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        loss = cross_entropy(self.net(batch[0]), batch[1])
        # Average the metric over all ranks.
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> None:
        self.accuracy(self.net(batch[0]), batch[1])
        # torchmetrics aggregates the values of all ranks.
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="in all, with those of a checkpoint (%(default)s)")
    parser.add_argument("--folder", default="digits", help="where checkpoints go (%(default)s)")
    parser.add_argument("--resume", help="a checkpoint to go on from, on the host of rank 0")
    args = parser.parse_args()

    seed_everything(1, verbose=False)
    # The data set has 1,797 images of 8 x 8 pixels.
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train, test = TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])

    module = Reader()
    trainer = Trainer(
        strategy=HorovodStrategy(),
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint(args.folder, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(train, 32, shuffle=True), DataLoader(test, 64), ckpt_path=args.resume)
    hvd.check_in_sync(module)
    if trainer.is_global_zero:
        figures = "  ".join(f"{name} {float(value):.3f}" for name, value in trainer.callback_metrics.items())
        print(f"{trainer.world_size} ranks, {trainer.current_epoch} epochs  {figures}")


if __name__ == "__main__":
    main()
