"""Small random models to compare training on shards with training on the combined batch, and shared helpers."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

ROWS = 4  # rows of each rank's shard
kinds_of_variables = pytest.mark.parametrize(
    "reference", [pytest.param(False, id="resource"), pytest.param(True, id="reference", marks=pytest.mark.heavy)]
)
"""For tests with TensorFlow 1 variables: resource variables, and the older reference variables."""


@dataclass
class Case:
    """A model, data and options, equal on every rank for one seed."""

    seed: int
    width: list[int] = field(default_factory=list)  # of each layer, inputs first
    vocabulary: int = 0  # rows of an embedding; 0: no embedding
    unused: bool = False  # True if the model has a variable that the loss does not use

    def __post_init__(self) -> None:
        choose = random.Random(self.seed)
        self.width = [choose.randint(1, 9) for _ in range(choose.randint(2, 5))]
        self.vocabulary = choose.choice([0, 3, 12])
        self.unused = choose.random() < 0.5
        self.predivide = choose.choice([1.0, 1.0, 2.5])
        self.sparse_as_dense = choose.random() < 0.5
        self.groups = choose.choice([None, None, 1, 3, "lists"])
        self.choose = choose

    def initial(self) -> list[tuple[str, np.ndarray]]:
        """Return (name, value) of every variable."""
        rng = np.random.default_rng(self.seed)
        shapes = [(f"w{i}", pair) for i, pair in enumerate(zip(self.width, self.width[1:], strict=False))]
        shapes += [(f"b{i}", (n,)) for i, n in enumerate(self.width[1:])]
        if self.vocabulary:
            shapes.append(("embedding", (self.vocabulary, self.width[0])))
        if self.unused:
            shapes.insert(1, ("unused", (3,)))
        return [(name, rng.normal(size=shape) / 2) for name, shape in shapes]

    def options(self, variables: list[Any]) -> dict[str, Any]:
        """Return the options of the tape and the optimizer."""
        groups: Any = self.groups
        if groups == "lists":
            half = len(variables) // 2
            groups = [variables[half:], variables[:1]] if half > 0 else None
        return {"groups": groups, "gradient_predivide_factor": self.predivide, "sparse_as_dense": self.sparse_as_dense}

    def batch(self, step: int, part: Any = slice(None)) -> dict[str, np.ndarray]:
        """Return this ``part`` of the combined batch of all ranks."""
        rng = np.random.default_rng(1000 * self.seed + step)
        rows = ROWS * hvd.size()
        batch = {
            "x": rng.normal(size=(rows, self.width[0])),
            "y": rng.normal(size=(rows, self.width[-1])),
            "ids": rng.integers(0, max(1, self.vocabulary), rows),
        }
        return {key: value[part] for key, value in batch.items()}

    def loss(self, variables: dict[str, Any], batch: dict[str, Any]) -> Any:
        """Return the mean loss over the rows."""
        hidden = batch["x"]
        if self.vocabulary:
            hidden = hidden + tf.gather(variables["embedding"], batch["ids"])
        for i in range(len(self.width) - 1):
            hidden = tf.tanh(tf.matmul(hidden, variables[f"w{i}"]) + variables[f"b{i}"])
        return tf.reduce_mean(tf.square(hidden - batch["y"]))


def shard() -> slice:
    """Return this rank's rows."""
    return slice(hvd.rank() * ROWS, (hvd.rank() + 1) * ROWS)


def assert_equal_training(case: Case, actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    tolerance = 1e-9 if case.predivide == 1.0 else 1e-6  # TensorFlow keeps factors as float32
    for (name, start), a, e in zip(case.initial(), actual, expected, strict=True):
        message = f"{case} {case.options([1, 2])}: {name}"
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance, err_msg=message)
        assert (name == "unused") == np.array_equal(e, start), f"{message} was trained?"


@contextlib.contextmanager
def old_graph() -> Iterator[tf.Graph]:
    """Return a graph with TensorFlow 1 control flow; reference variables work in no other."""
    tf1 = tf.compat.v1
    before = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            yield graph
    finally:
        if before:
            tf1.enable_control_flow_v2()
