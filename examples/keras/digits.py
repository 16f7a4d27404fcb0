"""Keras' fit on many workers, with TensorFlow, PyTorch or JAX as its backend: a small CNN reads handwritten digits.

    KERAS_BACKEND=torch horovodrun -np 2 python examples/keras/digits.py

The data, 1,797 digits of 8 x 8 pixels, ship inside scikit-learn, so nothing is downloaded. The places marked
`# Horovod:` are all that it takes to train on many workers. The model saved at the end loads in programs that know
nothing of Horovod.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import horovod.keras as hvd


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and held-out images and labels, cut alike on every worker."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    order = np.random.RandomState(1).permutation(len(labels))
    test, train = order[:360], order[360:]
    return (images[train], labels[train]), (images[test], labels[test])


def build_model() -> keras.Model:
    """Two convolutions and two dense layers."""
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10),
        ]
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits with Keras' fit.")
    parser.add_argument("--epochs", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one worker (default %(default)s)")
    parser.add_argument("--save", default="digits.keras", help="file that rank 0 writes (default %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # Horovod: initialise.
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    (images, labels), test = load_data()
    # Horovod: every worker trains on a part of the data, of equal size.
    most = len(images) // hvd.size() * hvd.size()
    mine = slice(hvd.rank(), most, hvd.size())

    model = build_model()
    # Horovod: adjust the learning rate to the number of workers, and add the distributed optimizer.
    rate = args.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate))
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        # Horovod: begin everywhere with the weights of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Horovod: metrics of all workers' data, for the callbacks that follow and for what is printed.
        hvd.callbacks.MetricAverageCallback(),
        # Horovod: approach the larger learning rate slowly.
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
    ]
    history = model.fit(
        images[mine], labels[mine], batch_size=args.batch_size, epochs=args.epochs, callbacks=callbacks, verbose=0
    ).history
    if hvd.rank() == 0:
        for epoch, (loss, accuracy) in enumerate(zip(history["loss"], history["accuracy"], strict=True), 1):
            print(f"epoch {epoch:2}/{args.epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}")

    loss, accuracy = model.evaluate(*test, verbose=0)
    report(model, loss, accuracy, len(test[0]))
    # Horovod: one worker writes.
    if hvd.rank() == 0:
        model.save(args.save)
        print(f"saved {args.save}")


def report(model: keras.Model, loss: float, accuracy: float, images: int) -> None:
    """Prints what rank 0 found, or ends the job where the ranks found different things."""
    digest = hvd.check_in_sync(model, loss=loss)
    if hvd.rank() == 0:
        print(f"final held-out accuracy {accuracy:.4f} on {images} images")
        print(f"held-out loss {loss:.6f}, equal on all {hvd.size()} ranks")
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
