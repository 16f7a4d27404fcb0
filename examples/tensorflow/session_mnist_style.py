"""Horovod's well-known example for TensorFlow 1 (graph, MonitoredTrainingSession, hooks), on TensorFlow 2.

    horovodrun -np 2 python examples/tensorflow/session_mnist_style.py

Only the import of TensorFlow differs from the original (`tensorflow.compat.v1`, and a line that enables its behavior).
The data, 1,797 handwritten digits of 8 x 8 pixels, are part of scikit-learn, so nothing is downloaded. The lines marked
`# Horovod:` are all that is needed to train on many workers.
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)


def conv_model(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Create a model with two convolutional and two dense layers, and return its mean loss and accuracy.

    images: (n, 8, 8, 1), labels: (n,).
    """

    def weights(name: str, shape: list[int]) -> tf.Tensor:
        return tf.get_variable(name, shape, initializer=tf.glorot_uniform_initializer())

    def bias(size: int) -> tf.Tensor:
        return tf.get_variable("bias", [size], initializer=tf.zeros_initializer())

    with tf.variable_scope("conv1"):
        x = tf.nn.conv2d(images, weights("kernel", [3, 3, 1, 32]), strides=1, padding="SAME")
        x = tf.nn.relu(x + bias(32))
    with tf.variable_scope("conv2"):
        x = tf.nn.conv2d(x, weights("kernel", [3, 3, 32, 32]), strides=1, padding="SAME")
        x = tf.nn.max_pool2d(tf.nn.relu(x + bias(32)), 2, 2, "VALID")
    with tf.variable_scope("dense1"):
        x = tf.reshape(x, [-1, 4 * 4 * 32])
        x = tf.nn.relu(tf.matmul(x, weights("kernel", [4 * 4 * 32, 64])) + bias(64))
    with tf.variable_scope("dense2"):
        logits = tf.matmul(x, weights("kernel", [64, 10])) + bias(10)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    return loss, accuracy


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out images and labels, using the same split on every worker."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.RandomState(1).permutation(len(labels))
    test, train = order[:360], order[360:]
    return (images[train], labels[train]), (images[test], labels[test])


class EvaluateAtEnd(tf.train.SessionRunHook):
    """Session hook that saves the final values of some tensors and of all trained variables."""

    def __init__(self, tensors: dict[str, tf.Tensor]) -> None:
        self.tensors = tensors
        self.values: dict[str, float] = {}
        self.digest = ""

    def begin(self) -> None:
        self.variables = tf.trainable_variables()

    def end(self, session: tf.Session) -> None:
        self.values = session.run(self.tensors)
        digest = hashlib.sha256()
        for value in session.run(self.variables):
            digest.update(value.tobytes())
        self.digest = digest.hexdigest()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits in a session.")
    parser.add_argument("--steps", type=int, default=1200, help="for all workers together (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default %(default)s)")
    parser.add_argument("--checkpoint-dir", default="./checkpoints", help="of rank 0 (default %(default)s)")
    parser.add_argument("--reference-variables", action="store_true", help="the old kind of variables")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # Horovod: initialize Horovod.
    hvd.init()
    if args.reference_variables:
        tf.disable_resource_variables()
    else:
        tf.enable_resource_variables()

    (train_images, train_labels), test = load_data()
    # Horovod: each worker reads its part of the data, in a different order.
    shard = slice(hvd.rank(), None, hvd.size())
    dataset = tf.data.Dataset.from_tensor_slices((train_images[shard], train_labels[shard]))
    dataset = dataset.shuffle(2000, seed=hvd.rank()).repeat().batch(args.batch_size)
    images, labels = tf.data.make_one_shot_iterator(dataset).get_next()

    with tf.variable_scope("model"):
        loss, _ = conv_model(images, labels)
    with tf.variable_scope("model", reuse=True):
        test_loss, test_accuracy = conv_model(tf.constant(test[0]), tf.constant(test[1]))

    # Horovod: scale the learning rate by the number of workers.
    opt = tf.train.AdagradOptimizer(args.lr * hvd.size())
    # Horovod: add the distributed optimizer.
    opt = hvd.DistributedOptimizer(opt)
    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)

    at_end = EvaluateAtEnd({"loss": test_loss, "accuracy": test_accuracy})
    hooks = [
        # Horovod: broadcast rank 0's variables when training begins or continues from a checkpoint.
        hvd.BroadcastGlobalVariablesHook(0),
        # Horovod: divide the number of steps by the number of workers, because all workers train in parallel.
        tf.train.StopAtStepHook(last_step=args.steps // hvd.size()),
        at_end,
    ]
    if hvd.rank() == 0:
        hooks.append(tf.train.LoggingTensorHook({"step": global_step, "loss": loss}, every_n_iter=100))

    # Horovod: use one GPU for each worker on this machine.
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Horovod: write checkpoints on rank 0 only, so that no other worker overwrites them.
    checkpoint_dir = args.checkpoint_dir if hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
        while not mon_sess.should_stop():
            mon_sess.run(train_op)

    report(at_end)


def report(at_end: EvaluateAtEnd) -> None:
    """Print the results, or end the job if the results differ between ranks."""
    results = hvd.allgather_object((at_end.digest, float(at_end.values["loss"])))
    if len(set(results)) != 1:
        raise SystemExit(f"the ranks differ: parameters (sha256) and held-out loss by rank {results}")
    if hvd.rank() == 0:
        print(f"held-out loss {at_end.values['loss']:.6f}, equal on all {hvd.size()} ranks")
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {at_end.digest[:16]}")
        print(f"final held-out accuracy {at_end.values['accuracy']:.4f} on 360 images", flush=True)


if __name__ == "__main__":
    main()
