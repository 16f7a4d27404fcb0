"""Mini-batch k-means on many workers: clusters of handwritten digits, of which each worker has a part.

    horovodrun -np 2 python examples/numpy/kmeans.py

In each step a worker assigns a batch of its digits to the nearest centres; the sums and numbers of digits of each
cluster are added up over the workers while it draws the next batch, and all move the centres alike. The data, 1,797
digits of 8 x 8 pixels, ship inside scikit-learn, so nothing is downloaded. The places marked `# Horovod:` are all that
it takes to do this on many workers.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.datasets import load_digits
from sklearn.metrics import homogeneity_score, pairwise_distances_argmin_min

import horovod.numpy as hvd


def sums_of(batch: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each cluster: the sum of its digits in the batch, and how many there are."""
    nearest, _ = pairwise_distances_argmin_min(batch, centres)
    members = np.eye(len(centres))[nearest]
    return members.T @ batch, members.sum(0)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cluster handwritten digits by mini-batch k-means.")
    parser.add_argument("--steps", type=int, default=60, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="digits per worker and step (default %(default)s)")
    parser.add_argument("--clusters", type=int, default=10, help="(default %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # Horovod: initialise.
    hvd.init()
    digits = load_digits()
    # Horovod: every worker has a part of the data, and draws by itself.
    mine = slice(hvd.rank(), None, hvd.size())
    images, labels = digits.data[mine] / 16, digits.target[mine]
    random = np.random.default_rng(hvd.rank())

    centres, _ = kmeans_plusplus(images, args.clusters, random_state=0)
    # Horovod: begin everywhere with the centres of rank 0.
    hvd.broadcast_(centres, 0)
    seen = np.zeros(args.clusters)
    batch = random.choice(images, args.batch_size)
    for _ in range(args.steps):
        # Horovod: add up over the workers, while this one draws its next batch.
        handle = hvd.grouped_allreduce_async_(sums_of(batch, centres), op=hvd.Sum, name="step")
        batch = random.choice(images, args.batch_size)
        sums, counts = handle.result()
        seen += counts
        centres += (sums - counts[:, np.newaxis] * centres) / np.maximum(seen, 1)[:, np.newaxis]

    nearest, distances = pairwise_distances_argmin_min(images, centres)
    # Horovod: the figures are those of all workers' data.
    inertia = float(hvd.allreduce(np.square(distances).sum(), op=hvd.Sum)) / len(digits.data)
    clusters, digit = hvd.grouped_allgather([nearest, labels])
    digest = hvd.check_in_sync(centres=centres)
    if hvd.rank() == 0:
        print(f"mean squared distance to the nearest of {args.clusters} centres {inertia:.4f}")
        print(f"homogeneity of the clusters {homogeneity_score(digit, clusters):.4f}")
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
