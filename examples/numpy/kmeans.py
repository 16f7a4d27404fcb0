"""Cluster handwritten digits by mini-batch k-means, with the data divided among several workers.

    horovodrun -np 2 python examples/numpy/kmeans.py

In each step, a worker assigns a batch of its digits to the nearest centers. The sums and counts of each cluster are
added over the workers while each draws its next batch, and all workers move the centers in the same way. The data,
1,797 digits of 8 x 8 pixels, are part of scikit-learn, so nothing is downloaded. The lines marked `# Horovod:` are all
that is needed for many workers.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.datasets import load_digits
from sklearn.metrics import homogeneity_score, pairwise_distances_argmin_min

import horovod.numpy as hvd


def sums_of(batch: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum and the count of the batch's digits in each cluster."""
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
    # Horovod: initialize Horovod.
    hvd.init()
    digits = load_digits()
    # Horovod: give each worker a part of the data. The worker's rank is the seed, so that workers draw different
    # batches.
    shard = slice(hvd.rank(), None, hvd.size())
    images, labels = digits.data[shard] / 16, digits.target[shard]
    random = np.random.default_rng(hvd.rank())

    centres, _ = kmeans_plusplus(images, args.clusters, random_state=0)
    # Horovod: start all workers with rank 0's centers.
    hvd.broadcast_(centres, 0)
    seen = np.zeros(args.clusters)
    batch = random.choice(images, args.batch_size)
    for _ in range(args.steps):
        # Horovod: add the sums of all workers while this worker draws its next batch.
        handle = hvd.grouped_allreduce_async_(sums_of(batch, centres), op=hvd.Sum, name="step")
        batch = random.choice(images, args.batch_size)
        sums, counts = handle.result()
        seen += counts
        centres += (sums - counts[:, np.newaxis] * centres) / np.maximum(seen, 1)[:, np.newaxis]

    nearest, distances = pairwise_distances_argmin_min(images, centres)
    # Horovod: sum the results of all workers.
    inertia = float(hvd.allreduce(np.square(distances).sum(), op=hvd.Sum)) / len(digits.data)
    clusters, digit = hvd.grouped_allgather([nearest, labels])
    digest = hvd.check_in_sync(centres=centres)
    if hvd.rank() == 0:
        print(f"mean squared distance to the nearest of {args.clusters} centres {inertia:.4f}")
        print(f"homogeneity of the clusters {homogeneity_score(digit, clusters):.4f}")
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
