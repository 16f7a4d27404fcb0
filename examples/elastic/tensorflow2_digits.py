"""Elastic training of a small network on scikit-learn's handwritten digits with a TensorFlow 2 training loop.

    horovodrun -np 2 --min-np 1 --host-discovery-script ./hosts.sh python examples/elastic/tensorflow2_digits.py

See pytorch_digits.py for hosts.sh. The lines marked `# Elastic:` make a Horovod program elastic.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out images and labels, using the same shuffled split on every worker."""
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.RandomState(1).permutation(len(labels))
    return (images[order[360:]], labels[order[360:]]), (images[order[:360]], labels[order[:360]])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits, elastically.")
    parser.add_argument("--epochs", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.02, help="s after each step, to have time to watch it")
    args = parser.parse_args()
    (images, labels), (test_images, test_labels) = load_data()
    tf.random.set_seed(1)
    model = tf.keras.Sequential(
        [tf.keras.Input((64,)), tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10)]
    )
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
    # Create the optimizer's variables, because they are part of the elastic state.
    optimizer.build(model.trainable_variables)

    # A new worker reaches this call only after its slow setup. Until then, the other workers continue training.
    hvd.init()

    # The last batch of an epoch can be smaller, so let TensorFlow trace a function for any batch size.
    @tf.function(reduce_retracing=True)
    def train_step(batch: tf.Tensor, batch_labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(batch_labels, model(batch, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    # Elastic: run the function again with the current state whenever workers leave or join.
    @hvd.elastic.run
    def train(state: hvd.elastic.TensorFlowState) -> None:
        print(f"goes on in epoch {state.data.epoch} as rank {hvd.rank()} of {hvd.size()}", flush=True)
        # The loss stays NaN if the epoch has no batches left.
        loss = float("nan")
        # Elastic: adapt the learning rate to the number of workers.
        optimizer.learning_rate = args.lr * hvd.size()
        # should_stop() returns True once any rank has received SIGTERM.
        while state.data.epoch < args.epochs and not hvd.should_stop():
            # Elastic: iterate over the remaining batches of the epoch.
            for step, batch in enumerate(state.data, 1):
                loss = train_step(*batch)
                # Elastic: record finished batches, so that they are not repeated.
                state.data.record()
                if step % 5 == 0:
                    # Elastic: save the state, and let new workers join.
                    state.commit()
                time.sleep(args.pause)
            state.data.set_epoch(state.data.epoch + 1)
            if hvd.rank() == 0:
                done = f"{state.data.epoch}/{args.epochs}"
                print(f"epoch {done}  loss {float(loss):.4f}  {hvd.size()} ranks", flush=True)
            state.commit()

    # Elastic: use each image once per epoch, with any number of workers.
    source = tf.data.Dataset.from_tensor_slices((images, labels))
    data = hvd.elastic.ElasticDataset(source, args.batch_size)
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    # Elastic: pass all state that a worker needs to continue training.
    train(hvd.elastic.TensorFlowState([*model.variables, *variables], data=data))

    accuracy = float((np.argmax(model(test_images).numpy(), 1) == test_labels).mean())
    digest = hvd.check_in_sync(model, accuracy=accuracy)
    if hvd.rank() == 0:
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")
        print(f"final held-out accuracy {accuracy:.4f} on {len(test_labels)} images", flush=True)


if __name__ == "__main__":
    main()
