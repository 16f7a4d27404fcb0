"""Each estimator on as many rows as MNIST has, 60,000 of 28 x 28 numbers: what is learnt, and how much memory a rank
takes for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("sklearn")

ROWS, EPOCHS = 60_000, 2
LIMIT = 1000  # MB that a rank may hold at a time, the framework included

PROGRAM = """
import os
import pathlib
import sys

from pyspark.sql import SparkSession

from horovod.spark.common.backend import LocalBackend
from horovod.spark.common.store import LocalStore

kind, data, store, told = sys.argv[1:]


def note():
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path(told, str(os.getpid())).write_text(status.split("VmHWM:")[1].split()[0])


settings = {
    "backend": LocalBackend(2), "store": LocalStore(store), "feature_cols": ["image"], "label_cols": ["label"],
    "batch_size": 64, "epochs": EPOCHS, "validation": 0.1, "random_seed": 3, "verbose": 2,
}
if kind == "keras":
    import keras
    from horovod.spark.keras import KerasEstimator

    class Noting(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            note()

    layers = keras.layers
    model = keras.Sequential([layers.Input((784,)), layers.Dense(128, "relu"), layers.Dense(10)])
    estimator = KerasEstimator(
        model=model, optimizer=keras.optimizers.Adam(2e-3), metrics=["accuracy"], callbacks=[Noting()],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **settings,
    )
else:
    import torch

    class Net(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

        def forward(self, image):
            note()
            return super().forward(image)

    def accuracy(output, label):
        return (output.argmax(1) == label).float().mean()

    if kind == "torch":
        from horovod.spark.torch import TorchEstimator
    else:
        from horovod.spark.lightning import TorchEstimator
    model = Net()
    estimator = TorchEstimator(
        model=model, optimizer=torch.optim.Adam(model.parameters(), 2e-3), loss=torch.nn.CrossEntropyLoss(),
        metrics=[accuracy], input_shapes=[[-1, 784]], **settings,
    )
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
history = estimator.fit(spark.read.parquet(data)).getHistory()
print("accuracy", history["val_accuracy"][-1])
spark.stop()
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A file of ``image``, 784 numbers, and ``label``: scikit-learn's digits, three times as large and each in another
    place and brightness, in row groups of 5,000."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet
    from sklearn.datasets import load_digits

    digits, random = load_digits(), np.random.default_rng(0)
    path = tmp_path_factory.mktemp("images") / "images.parquet"
    schema = pa.schema({"image": pa.list_(pa.float32()), "label": pa.int64()})
    with parquet.ParquetWriter(path, schema) as writer:
        for _ in range(ROWS // 5000):
            chosen = random.integers(len(digits.target), size=5000)
            places = np.zeros((5000, 28, 28), "float32")
            for place, image in zip(places, digits.images[chosen], strict=True):
                down, right = random.integers(5, size=2)
                place[down : down + 24, right : right + 24] = np.kron(image, np.ones((3, 3))) / 16
            places *= random.uniform(0.7, 1, size=(5000, 1, 1)).astype("float32")
            rows = pa.ListArray.from_arrays(np.arange(0, 5001 * 784, 784, dtype="int32"), places.reshape(-1))
            writer.write_table(pa.table([rows, pa.array(digits.target[chosen])], schema=schema))
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["torch", "lightning", "keras"])
def test_it_learns_in_little_memory(kind, images, tmp_path):
    pytest.importorskip({"lightning": "lightning.pytorch"}.get(kind, kind))
    if kind == "keras":
        pytest.importorskip("tensorflow")
    told = tmp_path / "told"
    told.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM.replace("EPOCHS", str(EPOCHS)))
    environ = {
        **os.environ, "KERAS_BACKEND": "tensorflow", "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "program.py", kind, str(images), f"{tmp_path}/store", str(told)], cwd=tmp_path, env=environ,
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    accuracy = float(next(line for line in ran.stdout.splitlines() if line.startswith("accuracy")).split()[1])
    held = [int(file.read_text()) / 1000 for file in told.iterdir()]
    print(f"{kind}: accuracy {accuracy:.3f}, ranks held {held} MB")
    assert accuracy > 0.95
    assert len(held) >= 2
    assert max(held) < LIMIT, held
