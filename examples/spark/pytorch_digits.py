"""Train a small network on scikit-learn's handwritten digits, on ranks that run in tasks of a Spark application.

    python examples/spark/pytorch_digits.py
    python examples/spark/pytorch_digits.py --elastic
    spark-submit --master spark://HOST:7077 examples/spark/pytorch_digits.py --num-proc 4

Without a master, executors with one core each run on this machine, one for each rank. With --elastic, training
continues if an executor is lost (kill one to try it), and new ranks join when Spark has started another executor.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from pyspark import SparkConf
from pyspark.sql import SparkSession

import horovod.spark


def train(epochs: int, batch: int, learning_rate: float, elastic: bool) -> tuple[float, int, dict[str, Any] | None]:
    """Train on this rank, and return the held-out accuracy, the number of ranks and, on rank 0, the model."""
    import torch
    import torch.nn.functional as F
    from sklearn.datasets import load_digits
    from torch import nn

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    held_out, training = order[:360], order[360:]

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    def loop(state: Any) -> None:
        while state.epoch < epochs:
            shuffled = training[torch.randperm(len(training), generator=torch.Generator().manual_seed(state.epoch))]
            # Use parts of equal size, so that all ranks run the same number of steps.
            share = len(shuffled) // hvd.size()
            shard = shuffled[hvd.rank() * share : (hvd.rank() + 1) * share]
            model.train()
            for part in shard.split(max(1, batch // hvd.size())):
                optimizer.zero_grad()
                F.cross_entropy(model(images[part]), labels[part]).backward()
                optimizer.step()
            if hvd.rank() == 0 and state.epoch % 5 == 4:
                print(f"epoch {state.epoch + 1}: accuracy {accuracy():.3f} on {hvd.size()} ranks", flush=True)
            state.epoch += 1
            if elastic:
                state.commit()

    def accuracy() -> float:
        model.eval()
        with torch.no_grad():
            return float((model(images[held_out]).argmax(1) == labels[held_out]).float().mean())

    if elastic:
        hvd.elastic.run(loop)(state)
    else:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        loop(state)
    return accuracy(), hvd.size(), model.state_dict() if hvd.rank() == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-proc", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=30, help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of all ranks in a step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.003, help="(default: %(default)s)")
    parser.add_argument("--elastic", action="store_true", help="go on with the other ranks when an executor is lost")
    options = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAppName("digits").set("spark.ui.showConsoleProgress", "false")
    conf.setIfMissing("spark.master", f"local-cluster[{options.num_proc},1,1024]")
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    arguments = (options.epochs, options.batch, options.learning_rate, options.elastic)
    if options.elastic:
        results = horovod.spark.run_elastic(train, arguments, num_proc=options.num_proc, min_num_proc=1)
    else:
        results = horovod.spark.run(train, arguments, num_proc=options.num_proc)
    accuracy, size, weights = results[0]
    assert weights is not None
    parameters = sum(tensor.numel() for tensor in weights.values())
    print(f"test accuracy {accuracy:.4f} on {size} ranks; the driver has the model, {parameters} parameters")
    spark.stop()


if __name__ == "__main__":
    main()
