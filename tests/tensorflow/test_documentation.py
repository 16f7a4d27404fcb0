"""The programs in docs/tensorflow.md run as they stand there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tensorflow.md"

# What the programs leave to the reader.
BEFORE = """
import keras
import numpy as np
import tensorflow as tf

from horovod.common.state import state

random = np.random.RandomState(int(state.job.rank))
images, labels = random.randn(96, 6).astype("float32"), random.randint(0, 3, 96)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(0.1)
"""
XLA_AFTER = """
hvd.broadcast_variables(model.variables, root_rank=0)
train_step(tf.constant(images), tf.constant(labels))
"""
AFTERWARDS = {"tf.function": "", "Keras": "", "XLA": XLA_AFTER}


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.skipif(not PAGE.exists(), reason="the documents are not here")
def test_every_program_runs_and_leaves_equal_weights(tf_pool, tmp_path):
    assert len(programs()) == len(AFTERWARDS)

    def work(path, folder):
        import hashlib
        import os
        import runpy

        import horovod.tensorflow as hvd

        os.chdir(folder)
        model = runpy.run_path(path)["model"]
        digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
        os.chdir("/")
        return hvd.allgather_object(digest)

    for (name, after), program in zip(AFTERWARDS.items(), programs(), strict=True):
        path = tmp_path / f"{len(name)}.py"
        path.write_text(BEFORE + program + after)
        for digests in tf_pool(2).run(work, str(path), str(tmp_path), timeout=120):
            assert digests[0] == digests[1], f"{name}: the ranks have different weights"
