"""Train a small PyTorch network on handwritten digits with TorchEstimator on Spark.

    python examples/spark/torch_digits.py
    spark-submit --master spark://host:7077 examples/spark/torch_digits.py --num-proc 4 --store hdfs://host:8020/digits

The DataFrame is written to the store as Parquet files, and each rank reads a part of them. The result is a Spark ML
model.
"""

from __future__ import annotations

import torch
from digits import accuracy, arguments, load, session, store_in

from horovod.spark.common.backend import LocalBackend, SparkBackend
from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator


def right(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == label).float().mean()


def main() -> None:
    args = arguments(__doc__)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 4 * 4, 10),
    )
    with session() as spark, store_in(args.store) as folder:
        train, test = load(spark)
        estimator = TorchEstimator(
            backend=LocalBackend(args.num_proc) if args.local else SparkBackend(args.num_proc),
            store=Store.create(folder),
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
            loss=torch.nn.CrossEntropyLoss(),
            metrics=[right],
            input_shapes=[[-1, 1, 8, 8]],
            feature_cols=["features"],
            label_cols=["label"],
            validation=0.1,
            batch_size=32,
            epochs=args.epochs,
            random_seed=1,
        )
        fitted = estimator.fit(train).setOutputCols(["scores"])
        print(f"run {fitted.getRunId()}, losses {[round(loss, 3) for loss in fitted.getHistory()['loss']]}")
        print(f"held-out accuracy {accuracy(fitted.transform(test), 'scores'):.3f} on {test.count()} images")


if __name__ == "__main__":
    main()
