"""Train a small convolutional network on scikit-learn's handwritten digits with a TensorFlow 2 training loop.

    horovodrun -np 2 python examples/tensorflow/tf2_digits.py

The data (1,797 images of 8 x 8 pixels) are part of scikit-learn, so nothing is downloaded. The lines marked `#
Horovod:` are all that Horovod adds to the training itself.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd


def make_model() -> tf.keras.Model:
    """Return a model that maps images (n, 8, 8, 1) to logits (n, 10), with 151,306 parameters."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(10),
        ]
    )


def load_data(held_out: int = 360) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out images and labels, using the same shuffled split on every worker."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.RandomState(1).permutation(len(labels))
    test, train = order[:held_out], order[held_out:]
    return (images[train], labels[train]), (images[test], labels[test])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # Horovod: initialize Horovod.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    gpus = tf.config.list_physical_devices("GPU")
    # Horovod: use one GPU for each worker on this machine.
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    # Use a different dropout seed on each rank. The broadcast below makes the initial weights equal.
    tf.random.set_seed(1 + rank)

    (images, labels), (test_images, test_labels) = load_data()
    # Horovod: give each rank a shard of the data, with the same number of batches.
    shard = slice(rank, len(labels) // size * size, size)
    steps = len(labels) // size // args.batch_size
    data = tf.data.Dataset.from_tensor_slices((images[shard], labels[shard]))
    data = data.shuffle(2000, seed=rank).batch(args.batch_size, drop_remainder=True).take(steps)

    model = make_model()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Horovod: scale the learning rate, because the global batch is larger.
    optimizer = tf.keras.optimizers.SGD(args.lr * size, momentum=0.9)

    @tf.function
    def train_step(batch: tf.Tensor, batch_labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(batch_labels, model(batch, training=True))
        # Horovod: average the gradients.
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    # Horovod: start all ranks with rank 0's weights.
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    variables = optimizer.variables
    hvd.broadcast_variables(variables() if callable(variables) else variables, root_rank=0)
    for epoch in range(args.epochs):
        total = 0.0
        for batch, batch_labels in data:
            total += float(train_step(batch, batch_labels))
        mean = float(hvd.allreduce(tf.constant(total / steps), name="mean_loss"))
        if rank == 0:
            print(f"epoch {epoch + 1:3d}/{args.epochs}  loss {mean:.4f}", flush=True)

    correct = np.argmax(model(test_images, training=False).numpy(), 1) == test_labels
    accuracy = float(correct.mean())
    # If the ranks differ, check_in_sync raises an error that names the first difference.
    digest = hvd.check_in_sync(model, optimizer, accuracy=accuracy)
    if rank == 0:
        print(f"parameters identical on all {size} ranks: sha256 {digest[:16]}")
        print(f"final held-out accuracy {accuracy:.4f} on {len(test_labels)} images", flush=True)


if __name__ == "__main__":
    main()
