"""Train a small network on scikit-learn's handwritten digits with JAX and Optax, on one or more workers.

    horovodrun -np 2 python examples/jax/digits.py

The data (1,797 images of 8 x 8 pixels) are part of scikit-learn, so nothing is downloaded. The lines marked `#
Horovod:` are all that Horovod adds.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
from jax import numpy as jnp
from sklearn.datasets import load_digits

import horovod.jax as hvd


def load_data(seed: int) -> tuple[Any, Any, Any, Any]:
    """Return training and held-out images (n, 64) and labels (n,), using the same shuffled split on every worker."""
    digits = load_digits()
    images, labels = digits.data.astype("float32") / 16.0, digits.target.astype("int32")
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = np.split(order, [len(order) // 5])
    return images[train], labels[train], images[test], labels[test]


def make_parameters(key: Any) -> Any:
    """Return initial parameters of two dense layers."""
    first, second = jax.random.split(key)
    return {
        "first": {"w": jax.random.normal(first, (64, 128)) * (2 / 64) ** 0.5, "b": jnp.zeros(128)},
        "second": {"w": jax.random.normal(second, (128, 10)) * (2 / 128) ** 0.5, "b": jnp.zeros(10)},
    }


def logits_of(params: Any, images: Any) -> Any:
    hidden = jax.nn.relu(images @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["second"]["w"] + params["second"]["b"]


def loss_of(params: Any, images: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, images), labels).mean()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # Horovod: initialize Horovod.
    hvd.init()
    images, labels, test_images, test_labels = load_data(args.seed)
    params = make_parameters(jax.random.key(args.seed + hvd.rank()))
    # Horovod: begin with rank 0's parameters.
    params = hvd.broadcast_parameters(params, root_rank=0)
    # Horovod: average the gradients.
    optimizer = hvd.DistributedOptimizer(optax.adam(args.lr))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, images: Any, labels: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    @jax.jit
    def evaluate(params: Any) -> Any:
        return (logits_of(params, test_images).argmax(1) == test_labels).mean()

    # Drop the remainder, so that all ranks take the same number of steps.
    steps = len(labels) // (args.batch_size * hvd.size())
    for epoch in range(1, args.epochs + 1):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(labels))
        # Horovod: select this rank's shard of the data.
        shard = order[hvd.rank() :: hvd.size()]
        losses = []
        for i in range(steps):
            batch = shard[i * args.batch_size : (i + 1) * args.batch_size]
            params, state, loss = step(params, state, images[batch], labels[batch])
            losses.append(loss)
        # Horovod: average the loss over all ranks.
        loss = hvd.allreduce(jnp.stack(losses).mean(), name="loss")
        if hvd.rank() == 0:
            print(
                f"epoch {epoch:3d}/{args.epochs}  loss {loss:.4f}  held-out accuracy {evaluate(params):.4f}", flush=True
            )
    digest = hvd.check_in_sync(params)
    if hvd.rank() == 0:
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
