"""Train a LightningModule on handwritten digits with Lightning's TorchEstimator on Spark.

    python examples/spark/lightning_digits.py
    spark-submit --master spark://host:7077 examples/spark/lightning_digits.py --num-proc 4 --store hdfs://host/digits

The module is the same as without Spark, except that a batch is a dict of tensors by column.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from digits import accuracy, arguments, load, session, store_in

from horovod.spark.common.backend import LocalBackend, SparkBackend
from horovod.spark.common.store import Store
from horovod.spark.lightning import TorchEstimator


class Reader(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features)

    def training_step(self, batch: dict[str, Any], number: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self(batch["features"]), batch["label"])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: dict[str, Any], number: int) -> None:
        right = (self(batch["features"]).argmax(1) == batch["label"]).float().mean()
        self.log("val_accuracy", right, batch_size=len(batch["label"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def main() -> None:
    args = arguments(__doc__)
    torch.manual_seed(1)
    with session() as spark, store_in(args.store) as folder:
        train, test = load(spark)
        estimator = TorchEstimator(
            backend=LocalBackend(args.num_proc) if args.local else SparkBackend(args.num_proc),
            store=Store.create(folder),
            model=Reader(),
            feature_cols=["features"],
            label_cols=["label"],
            validation=0.1,
            batch_size=32,
            epochs=args.epochs,
            random_seed=1,
            verbose=2,
        )
        fitted = estimator.fit(train)
        print(f"figures of the last epoch { {name: round(all_[-1], 3) for name, all_ in fitted.getHistory().items()} }")
        print(f"held-out accuracy {accuracy(fitted.transform(test), 'label__output'):.3f} on {test.count()} images")


if __name__ == "__main__":
    main()
