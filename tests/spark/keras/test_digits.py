"""The Keras estimator learns digits on two ranks.

Keras 3 and Keras 2 run in separate programs, because a process has one Keras backend.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("keras", minversion="3.0")
pytest.importorskip("sklearn")

PROGRAM = """
import math
import sys
import keras_used as keras
from pyspark.ml import Pipeline, PipelineModel
from pyspark.sql import SparkSession

from horovod.spark.common.backend import LocalBackend
from horovod.spark.common.store import LocalStore
from horovod.spark.keras import KerasEstimator
from tests.spark import digits

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
frame = digits.frame(spark)
keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential([layers.Input((8, 8)), layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10)])
estimator = KerasEstimator(
    model=model, optimizer=keras.optimizers.Adam(5e-3), metrics=["accuracy"], validation=0.2, epochs=6, verbose=2,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), feature_cols=["features"], label_cols=["label"],
    store=LocalStore(sys.argv[1]), backend=LocalBackend(2), random_seed=3, partitions_per_process=2, run_id="r",
)
Pipeline(stages=[estimator]).write().save(sys.argv[1] + "/pipeline")
Pipeline.load(sys.argv[1] + "/pipeline").fit(frame).write().save(sys.argv[1] + "/model")
loaded = PipelineModel.load(sys.argv[1] + "/model")
history = loaded.stages[0].getHistory()
print("validated", history["val_accuracy"][-1])
# The same seed and rows, however they are partitioned: the same figures.
again = estimator.fit(frame.repartition(3), {estimator.run_id: "again"}).getHistory()
pairs = [pair for name in history for pair in zip(history[name], again[name], strict=True)]
assert len(pairs) == 24 and all(math.isclose(*pair, rel_tol=1e-4) for pair in pairs), (history, again)
print("accuracy", digits.accuracy(loaded.transform(frame).collect()))
spark.stop()
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    "kind", ["tensorflow", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("torch", "legacy", "jax"))]
)
def test_a_pipeline_learns_digits_and_can_be_loaded(kind, tmp_path):
    pytest.importorskip("tf_keras" if kind == "legacy" else kind)
    (tmp_path / "keras_used.py").write_text(f"from {'tf_keras' if kind == 'legacy' else 'keras'} import *\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {
        **os.environ, "KERAS_BACKEND": "tensorflow" if kind == "legacy" else kind, "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "program.py", f"{tmp_path}/store"], cwd=tmp_path, env=environ, capture_output=True, text=True,
        timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = dict(line.split() for line in ran.stdout.splitlines() if line.startswith(("validated", "accuracy")))
    assert float(figures["validated"]) > 0.92, ran.stdout
    assert float(figures["accuracy"]) > 0.94, ran.stdout
    assert sorted(os.listdir(tmp_path / "store")) == ["model", "pipeline", "runs"]
