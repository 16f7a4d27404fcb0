"""Cases and columns of with_tensorflow.py, in a module that imports no framework."""

from __future__ import annotations

from math import prod

from cases import Case, resnet50

# Number of operations on 1024 floats in one sample. Within one tf.function, they are either independent or form a
# chain.
OPS = 100
# Number of training steps per call of fit.
STEPS = 20

# Number of operations or steps in each sample.
PARTS = {"independent": OPS, "chained": OPS, "eager": OPS, "resnet": 1, "mlp": STEPS, "cnn": STEPS}


def tensorflow_cases() -> list[Case]:
    """Return the benchmark cases for TensorFlow.

    `bytes` is the size of a case's tensors. For fit, it is the number of examples per rank.
    """
    small = [
        Case("independent", f"one of {OPS} in a tf.function", 4096, 5, 10),
        Case("chained", f"one of a chain of {OPS} in a tf.function", 4096, 2, 10),
        Case("eager", "one, eagerly", 4096, 1, 10),
    ]
    gradients = Case("resnet", "ResNet-50 gradients", 4 * sum(prod(shape) for shape in resnet50()), 1, 6)
    fits = [Case("mlp", "a step of fit, MLP", 64, 1, 4), Case("cnn", "a step of fit, CNN", 32, 1, 3)]
    return [*small, gradients, *fits]


OPERATIONS = {kind: ["op"] for kind in ("independent", "chained", "eager")}
FIT = {kind: ["fit"] for kind in ("mlp", "cnn")}

# Columns of the result tables: the job to run, and the modes for each kind of case. Keras 3.15's fit does not support
# the per-replica data of MultiWorkerMirroredStrategy, so that peer uses Keras 2, and Horovod is measured with both
# versions.
TENSORFLOW_COLUMNS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "horovod": ("horovod-keras2", {**OPERATIONS, "resnet": ["tape", "grouped"], **FIT}),
    # Replace the operation with tf.identity in the same functions, to measure TensorFlow's share of the time.
    "no operation": ("horovod-keras2", {kind: ["identity"] for kind in OPERATIONS}),
    "horovod, Keras 3": ("horovod-keras3", FIT),
    "MultiWorkerMirrored": (
        "mwms",
        {
            "independent": ["op"],
            "chained": ["op"],
            "resnet": ["one pack", "8 MiB packs"],
            **FIT,
        },
    ),
}
