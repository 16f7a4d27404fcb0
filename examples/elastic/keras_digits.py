"""Keras' fit on handwritten digits while workers come and go, with TensorFlow, PyTorch or JAX as its backend; see
pytorch_digits.py for how to start it.

    KERAS_BACKEND=torch horovodrun -np 2 --min-np 1 --host-discovery-script ./hosts.sh \\
        python examples/elastic/keras_digits.py

The places marked `# elastic` are what makes a program of Horovod elastic.
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import horovod.keras as hvd


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and held-out images and labels, cut by a shuffle that is the same on every worker."""
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    order = np.random.RandomState(1).permutation(len(labels))
    return (images[order[360:]], labels[order[360:]]), (images[order[:360]], labels[order[:360]])


class Pause(keras.callbacks.Callback):
    """After each step, to have time to watch it."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(self.seconds)


class Report(keras.callbacks.Callback):
    """A line an epoch; the end of the training when SIGTERM to any rank has asked for it, as a cloud does."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}  loss {(logs or {})['loss']:.4f}  {hvd.size()} ranks", flush=True)
        self.model.stop_training = hvd.should_stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits, elastically.")
    parser.add_argument("--epochs", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="images of all in a step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.02, help="s after each step (default %(default)s)")
    args = parser.parse_args()
    (images, labels), test = load_data()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    )

    hvd.init()  # after what takes time: the others train on until a new worker comes here
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(args.lr)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    @hvd.elastic.run  # elastic 1: called again, with the state as it is then, whenever the workers have changed
    def train(state: hvd.elastic.KerasState) -> None:
        print(f"goes on in epoch {state.data.epoch} as rank {hvd.rank()} of {hvd.size()}", flush=True)
        model.stop_training = False
        while state.data.epoch < args.epochs and not model.stop_training:
            model.fit(
                iter(state.data),  # what is left of the epoch
                steps_per_epoch=len(state.data),
                initial_epoch=state.data.epoch,
                epochs=state.data.epoch + 1,
                verbose=0,
                shuffle=False,  # they come in another order in each epoch
                callbacks=[
                    Report(),
                    Pause(args.pause),
                    hvd.elastic.UpdateDatasetCallback(state.data),  # elastic 2: what is done is not done again
                    hvd.elastic.CommitStateCallback(state, 5),  # elastic 3: what is gone back to; here others may join
                ],
            )

    # elastic 4: each image once in an epoch, and as many in a step whoever comes and goes: the learning rate may stay
    data = hvd.elastic.ElasticDataset((images, labels), global_batch=args.batch_size)
    train(hvd.elastic.KerasState(model, data=data))  # elastic 5: everything that a worker has to know to go on

    loss = model.evaluate(*test, verbose=0)
    accuracy = float((np.argmax(model.predict(test[0], verbose=0), 1) == test[1]).mean())
    digest = hvd.check_in_sync(model, loss=loss)
    if hvd.rank() == 0:
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")
        print(f"final held-out accuracy {accuracy:.4f} on {len(test[1])} images", flush=True)


if __name__ == "__main__":
    main()
