"""The TensorFlow and Keras programs in README.md and docs run unchanged."""

import pytest

from tests.documents import programs

# Definitions that the programs leave to the reader.
BEFORE = """
import keras
import numpy as np
import tensorflow as tf

from horovod.common.frontends import state

random = np.random.RandomState(int(state.job.rank))
images = random.randn(96, 6).astype("float32")
labels = images[:, :3].argmax(1)
keras.utils.set_random_seed(1)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3)])
loss = loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(0.1)
start = float(loss(labels, model(images)))
"""
XLA_AFTER = """
hvd.broadcast_variables(model.variables, root_rank=0)
train_step(tf.constant(images), tf.constant(labels))
"""
TAPE_BEFORE = """
with tf.GradientTape() as tape:
    value = loss(labels, model(images))
"""
TAPE_AFTER = """
batch = next(iter(dataset.batch(8)))
optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
"""
STEPS_BEFORE = """
import horovod.keras as hvd

hvd.init()
total = 96 * hvd.size()
"""
STEPS_AFTER = """
assert len(list(dataset)) == steps == 3
model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=loss)
model.fit(dataset, verbose=0)
"""
STREAM_BEFORE = """
import os

import pyarrow
from pyarrow import parquet

os.makedirs("train", exist_ok=True)
lists = pyarrow.array(images.tolist(), pyarrow.list_(pyarrow.float32()))
name = f"train/{state.job.rank}.parquet"
parquet.write_table(pyarrow.table({"image": lists, "label": labels}), f"{name}.new", row_group_size=20)
os.rename(f"{name}.new", name)

import horovod.tensorflow

horovod.tensorflow.allgather_object(0, name="all have written")
"""
SESSION_AFTER = """
model.set_weights([trained, np.zeros(3)])
"""
AROUND = {
    "the tape": (TAPE_BEFORE, TAPE_AFTER),
    "fit": ("dataset = dataset.take(96).batch(8)\n", ""),
    "equal steps": (STEPS_BEFORE, STEPS_AFTER),
    "tf.function": ("", ""),
    "Keras": ("", ""),
    "Keras with uneven data": (STEPS_BEFORE, ""),
    "a stream": (STREAM_BEFORE, "assert stream.processed_num == 0"),
    "XLA": ("", XLA_AFTER),
    "an elastic loop": ("", "assert state.data.epoch == 2"),
    "an elastic session": ("", SESSION_AFTER),
}
"""By name: code to run before the program, after BEFORE, and code to run after it."""
COMPLETE = ["a complete script, before", "a complete script, after"]


def run(text, folder):
    import os

    import horovod.tensorflow as hvd

    os.chdir(folder)
    try:
        left = {"__name__": "__main__"}
        exec(compile(text, "program", "exec"), left)
    finally:
        os.chdir("/")
    model, images, labels = left["model"], left["images"], left["labels"]
    hvd.check_in_sync(model.get_weights())
    losses = hvd.allgather_object((left["start"], float(left["loss_of"](labels, model(images)))))
    return sum(before for before, _ in losses), sum(after for _, after in losses)


@pytest.mark.heavy
def test_every_program_runs_and_leaves_equal_weights(tf_pool, tmp_path):
    found = programs("tensorflow")
    if not found:
        pytest.skip("the documents are not here")
    assert set(found) == {*AROUND, *COMPLETE}
    for name, (before, after) in AROUND.items():
        text = BEFORE + before + found[name].text + after
        for started, final in tf_pool(2).run(run, text, str(tmp_path), timeout=120):
            assert final < started, name


def run_complete(text, folder, together):
    import os
    import tempfile

    import horovod.tensorflow as hvd

    os.chdir(tempfile.mkdtemp(dir=folder))
    try:
        left = {"__name__": "__main__"}
        exec(compile(text, "train.py", "exec"), left)
        saved = os.listdir()
    finally:
        os.chdir("/")
    if together:
        hvd.check_in_sync(left["model"].get_weights())
    return saved, left["model"].history.history["loss"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", COMPLETE)
def test_complete_scripts_train(tf_pool, tmp_path, name):
    pytest.importorskip("sklearn")
    together = name == COMPLETE[1]
    results = tf_pool(2).run(run_complete, programs("tensorflow")[name].text, str(tmp_path), together, timeout=120)
    for rank, (saved, losses) in enumerate(results):
        assert losses[-1] < losses[0] / 2
        assert saved == (["model.keras"] if rank == 0 or not together else [])
