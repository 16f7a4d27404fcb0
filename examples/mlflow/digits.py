"""Train a small network on scikit-learn's handwritten digits, and log the run to MLflow.

    pip install mlflow
    export MLFLOW_TRACKING_URI=http://127.0.0.1:5000
    horovodrun -np 2 python examples/mlflow/digits.py --checkpoints runs/digits

Only rank 0 uses MLflow: it logs parameters, metrics and the model. MLFLOW_TRACKING_URI and MLFLOW_RUN_ID, which Azure
ML sets, identify the tracking server and the run; without a run id, it creates a run.

After SIGTERM, which clouds send before they stop a machine, all ranks stop at the same step, and rank 0 writes a
checkpoint. If it is started again with HOROVOD_RESUME=1 or `horovodrun --resume`, the job continues from the
checkpoint, in the same MLflow run.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd


class Tracking:
    """MLflow run that only rank 0 uses. On other ranks, all methods do nothing."""

    def __init__(self, args: argparse.Namespace, state: hvd.elastic.TorchState) -> None:
        self.mlflow: Any = None
        if hvd.rank() == 0:
            import mlflow

            self.mlflow = mlflow
            # Without a run id, MLflow creates a new run. A resumed job takes the run id from its checkpoint.
            name = os.environ.get("MLFLOW_RUN_ID") or state.run_id
            state.run_id = (mlflow.active_run() or mlflow.start_run(run_id=name)).info.run_id
            if state.step == 0:
                mlflow.log_params({"lr": args.lr, "batch_size": args.batch_size, "ranks": hvd.size()})
        # Store the run id on all ranks, in case rank 0 is lost.
        state.run_id = hvd.broadcast_object(state.run_id, root_rank=0)

    def figures(self, step: int, **values: float) -> None:
        if self.mlflow is not None:
            self.mlflow.log_metrics(values, step=step)

    def end(self, status: str, model: nn.Module | None = None) -> None:
        if self.mlflow is None:
            return
        if model is not None:
            # Do not save the model as a pickle, because loading a pickle executes code. The two example images tell
            # MLflow the shape of the input.
            self.mlflow.pytorch.log_model(
                model, name="model", serialization_format="pt2", input_example=EXAMPLE, pip_requirements=["torch"]
            )
        self.mlflow.end_run(status)


EXAMPLE = torch.zeros(2, 64).numpy()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and held-out images, using the same shuffled split on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    return TensorDataset(images[order[360:]], labels[order[360:]]), TensorDataset(
        images[order[:360]], labels[order[:360]]
    )


@hvd.elastic.run
def train(
    state: hvd.elastic.TorchState, loader: DataLoader, checkpoint: hvd.elastic.Checkpoint, args: argparse.Namespace
) -> tuple[str, Tracking]:
    """Train a network, and return the MLflow run and its final status."""
    tracking = Tracking(args, state)
    if hvd.rank() == 0:
        print(f"begins at step {state.step} with {hvd.size()} ranks, run {state.run_id}", flush=True)
    while state.epoch < args.epochs:
        for index, (images, labels) in enumerate(loader):
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(images), labels)
            loss.backward()
            state.optimizer.step()
            state.step += 1
            state.sampler.record_batch(index, args.batch_size)
            if state.step % 10 == 0:
                tracking.figures(state.step, loss=loss.item())
            # should_stop() returns True in the same step on all ranks.
            if hvd.should_stop():
                checkpoint.save(state.step, state)
                return "KILLED", tracking
            time.sleep(args.pause)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        checkpoint.save(state.step, state)
    return "FINISHED", tracking


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits, with MLflow.")
    parser.add_argument("--epochs", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank (default %(default)s)")
    parser.add_argument("--checkpoints", default="checkpoints", help="a directory, or a URL (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.0, help="s after each step, to have time to stop it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train_set, test_set = load_data()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(train_set)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, run_id=None)

    def adapt() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    # Horovod calls this function after the number of ranks has changed.
    state.register_reset_callbacks([adapt])
    checkpoint = hvd.elastic.Checkpoint(args.checkpoints, keep=2)
    checkpoint.resume(state)
    status, tracking = train(state, loader, checkpoint, args)
    # Wait until the last checkpoint has been written.
    checkpoint.close()

    model.eval()
    with torch.no_grad():
        images, labels = test_set.tensors
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    tracking.figures(state.step, accuracy=accuracy)
    tracking.end(status, model if status == "FINISHED" else None)
    if hvd.rank() == 0:
        print(f"{status} after step {state.step}, held-out accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
