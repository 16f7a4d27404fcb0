"""Train scikit-learn's linear classifier on handwritten digits, with the data divided among several workers.

    horovodrun -np 2 python examples/numpy/sgd_classifier.py

After each pass over its part (`SGDClassifier.partial_fit`), a worker takes the average of all workers' weights. The
data, 1,797 digits of 8 x 8 pixels, are part of scikit-learn, so nothing is downloaded. The lines marked `# Horovod:`
are all that is needed to train on many workers.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import horovod.numpy as hvd


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out images and labels, using the same split on every worker."""
    digits = load_digits()
    order = np.random.RandomState(1).permutation(len(digits.target))
    images, labels = digits.data[order] / 16, digits.target[order]
    return (images[360:], labels[360:]), (images[:360], labels[:360])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a linear classifier on handwritten digits with averaged weights."
    )
    parser.add_argument("--epochs", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--alpha", type=float, default=1e-4, help="of SGDClassifier (default %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # Horovod: initialize Horovod.
    hvd.init()
    (images, labels), (test_images, test_labels) = load_data()
    # Horovod: train each worker on part of the data.
    shard = slice(hvd.rank(), None, hvd.size())

    model = SGDClassifier(loss="log_loss", alpha=args.alpha, random_state=hvd.rank())
    for epoch in range(1, args.epochs + 1):
        model.partial_fit(images[shard], labels[shard], classes=np.arange(10))
        # Horovod: continue with the average of all workers' weights.
        hvd.grouped_allreduce_([model.coef_, model.intercept_])
        # Horovod: average the metric over the images of all workers.
        accuracy = float(hvd.allreduce(model.score(images[shard], labels[shard]), weight=len(labels[shard])))
        if hvd.rank() == 0:
            print(f"epoch {epoch:2}/{args.epochs}  accuracy {accuracy:.4f}")

    # Horovod: raise an error unless all workers have the same model.
    digest = hvd.check_in_sync(coef=model.coef_, intercept=model.intercept_)
    if hvd.rank() == 0:
        print(f"final held-out accuracy {model.score(test_images, test_labels):.4f} on {len(test_labels)} images")
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
