"""Train a small convolutional network on scikit-learn's handwritten digits with MXNet's Gluon.

    horovodrun -np 2 python examples/mxnet/digits.py

The data (1,797 images of 8 x 8 pixels) are part of scikit-learn, so nothing is downloaded. The lines marked `#
Horovod:` are all that Horovod adds to the training itself. MXNet 1.9.1 needs a separate environment, see docs/mxnet.md.
"""

from __future__ import annotations

import argparse
import hashlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

import horovod.mxnet as hvd


def make_model() -> gluon.nn.HybridSequential:
    """Create a model that maps images (n, 1, 8, 8) to logits (n, 10).

    The first batch determines the input sizes of the layers.
    """
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        gluon.nn.Conv2D(64, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Flatten(),
        gluon.nn.Dense(128, activation="relu"),
        gluon.nn.Dropout(0.3),
        gluon.nn.Dense(10),
    )
    return net


def load_data(held_out: int = 360) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out images and labels, using the same shuffled split on every worker."""
    digits = load_digits()
    images = (digits.images[:, np.newaxis] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.float32)
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
    # Use a different dropout seed on each rank. The broadcast below makes the weights equal.
    mx.random.seed(1 + rank)

    (images, labels), (test_images, test_labels) = load_data()
    # Horovod: give each rank a shard of the data, with the same number of batches.
    shard = slice(rank, len(labels) // size * size, size)
    np.random.seed(rank)
    data = gluon.data.DataLoader(
        gluon.data.ArrayDataset(images[shard], labels[shard]), args.batch_size, shuffle=True, last_batch="discard"
    )

    net = make_model()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    params = net.collect_params()
    # Horovod: broadcast rank 0's weights as soon as their shapes are known.
    hvd.broadcast_parameters(params, root_rank=0)
    # Horovod: average the gradients. Scale the learning rate, because the global batch is larger.
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": args.lr * size, "momentum": 0.9})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    for epoch in range(args.epochs):
        total = 0.0
        for batch, batch_labels in data:
            with autograd.record():
                loss = loss_of(net(batch), batch_labels)
            loss.backward()
            trainer.step(args.batch_size)
            total += float(loss.mean().asscalar())
        mean = hvd.allreduce(mx.nd.array([total / len(data)]), name="mean_loss").asscalar()
        if rank == 0:
            print(f"epoch {epoch + 1:3d}/{args.epochs}  loss {mean:.4f}", flush=True)

    correct = net(mx.nd.array(test_images)).argmax(1).asnumpy() == test_labels
    digest = hashlib.sha256(b"".join(param.data().asnumpy().tobytes() for _, param in sorted(params.items())))
    digests = hvd.allgather_object(digest.hexdigest())
    if len(set(digests)) > 1:
        raise SystemExit(f"the ranks hold other parameters: {digests}")
    if rank == 0:
        print(f"parameters identical on all {size} ranks: sha256 {digests[0][:16]}")
        print(f"final held-out accuracy {correct.mean():.4f} on {len(test_labels)} images", flush=True)


if __name__ == "__main__":
    main()
