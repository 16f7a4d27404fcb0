"""Train a small Keras CNN on handwritten digits with several workers, using TensorFlow, PyTorch or JAX as the backend.

    KERAS_BACKEND=torch horovodrun -np 2 python examples/keras/digits.py

The data, 1,797 digits of 8 x 8 pixels, are part of scikit-learn, so nothing is downloaded. The lines marked
`# Horovod:` are all that is needed to train on many workers. Programs without Horovod can load the model that is saved
at the end.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import horovod.keras as hvd


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out images and labels, using the same split on every worker."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    order = np.random.RandomState(1).permutation(len(labels))
    test, train = order[:360], order[360:]
    return (images[train], labels[train]), (images[test], labels[test])


def build_model() -> keras.Model:
    """Create a model with two convolutions and two dense layers."""
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
    # Horovod: initialize Horovod.
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    (images, labels), test = load_data()
    # Horovod: train each worker on a different part of the data. All parts have the same size.
    most = len(images) // hvd.size() * hvd.size()
    shard = slice(hvd.rank(), most, hvd.size())

    model = build_model()
    # Horovod: scale the learning rate by the number of workers, and wrap the optimizer.
    rate = args.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate))
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        # Horovod: start all workers with rank 0's weights.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Horovod: average the metrics over all workers, before other callbacks and the output use them.
        hvd.callbacks.MetricAverageCallback(),
        # Horovod: increase the learning rate gradually.
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
    ]
    history = model.fit(
        images[shard], labels[shard], batch_size=args.batch_size, epochs=args.epochs, callbacks=callbacks, verbose=0
    ).history
    if hvd.rank() == 0:
        for epoch, (loss, accuracy) in enumerate(zip(history["loss"], history["accuracy"], strict=True), 1):
            print(f"epoch {epoch:2}/{args.epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}")

    loss, accuracy = model.evaluate(*test, verbose=0)
    report(model, loss, accuracy, len(test[0]))
    # Horovod: write files on rank 0 only.
    if hvd.rank() == 0:
        model.save(args.save)
        print(f"saved {args.save}")


def report(model: keras.Model, loss: float, accuracy: float, images: int) -> None:
    """Print the results, or end the job if the results differ between ranks."""
    digest = hvd.check_in_sync(model, loss=loss)
    if hvd.rank() == 0:
        print(f"final held-out accuracy {accuracy:.4f} on {images} images")
        print(f"held-out loss {loss:.6f}, equal on all {hvd.size()} ranks")
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
