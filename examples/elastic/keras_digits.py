"""Elastic training of a Keras model on handwritten digits, with TensorFlow, PyTorch or JAX as the backend.

    KERAS_BACKEND=torch horovodrun -np 2 --min-np 1 --host-discovery-script ./hosts.sh \\
        python examples/elastic/keras_digits.py

See pytorch_digits.py for hosts.sh. The lines marked `# Elastic:` make a Horovod program elastic.
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import horovod.keras as hvd


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out images and labels, using the same shuffled split on every worker."""
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    order = np.random.RandomState(1).permutation(len(labels))
    return (images[order[360:]], labels[order[360:]]), (images[order[:360]], labels[order[:360]])


class Pause(keras.callbacks.Callback):
    """Callback that pauses after each step, so that the training is slow enough to watch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(self.seconds)


class Report(keras.callbacks.Callback):
    """Callback that prints a line per epoch.

    The callback stops the training after any rank has received SIGTERM, for example from a cloud provider.
    """

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

    # A new worker reaches this call only after its slow setup. Until then, the other workers continue training.
    hvd.init()
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(args.lr)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    # Elastic: run the function again with the current state whenever workers leave or join.
    @hvd.elastic.run
    def train(state: hvd.elastic.KerasState) -> None:
        print(f"goes on in epoch {state.data.epoch} as rank {hvd.rank()} of {hvd.size()}", flush=True)
        model.stop_training = False
        while state.data.epoch < args.epochs and not model.stop_training:
            model.fit(
                # Iterate over the remaining batches of the epoch.
                iter(state.data),
                steps_per_epoch=len(state.data),
                initial_epoch=state.data.epoch,
                epochs=state.data.epoch + 1,
                verbose=0,
                # The dataset already shuffles the images.
                shuffle=False,
                callbacks=[
                    Report(),
                    Pause(args.pause),
                    # Elastic: record finished batches, so that they are not repeated.
                    hvd.elastic.UpdateDatasetCallback(state.data),
                    # Elastic: save the state, and let new workers join.
                    hvd.elastic.CommitStateCallback(state, 5),
                ],
            )

    # Elastic: use each image once per epoch. The global batch has the same size for any number of workers, so the
    # learning rate stays the same.
    data = hvd.elastic.ElasticDataset((images, labels), global_batch=args.batch_size)
    # Elastic: pass all state that a worker needs to continue training.
    train(hvd.elastic.KerasState(model, data=data))

    loss = model.evaluate(*test, verbose=0)
    accuracy = float((np.argmax(model.predict(test[0], verbose=0), 1) == test[1]).mean())
    digest = hvd.check_in_sync(model, loss=loss)
    if hvd.rank() == 0:
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")
        print(f"final held-out accuracy {accuracy:.4f} on {len(test[1])} images", flush=True)


if __name__ == "__main__":
    main()
