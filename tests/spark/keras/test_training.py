"""Effects of KerasEstimator's params, on Parquet, with a single rank in this process; without Spark."""

import json

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("tensorflow")
pytest.importorskip("keras", minversion="3.0")
pytest.importorskip("numpy")

import keras
import numpy as np

from horovod.spark.common.store import LocalStore
from horovod.spark.keras import KerasEstimator, KerasModel, objects
from horovod.spark.keras.datamodule import NVTabularDataModule
from tests.spark.backends import InThisProcess
from tests.spark.common.tables import write_sums

ROWS = 60
SCALE = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")


def line(*shape):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input(shape or (4,)), keras.layers.Flatten(), keras.layers.Dense(1)])


def estimator(tmp_path, columns=None, **options):
    """Return an estimator that learns sum = x0 + x1 + x2 + x3 of scaled rows."""
    write_sums(tmp_path / "store", ROWS, **(columns or {}))
    params = {"model": line(), "optimizer": keras.optimizers.SGD(0.1), "loss": "mse", "verbose": 0, "epochs": 4}
    backend, store = InThisProcess(), LocalStore(tmp_path / "store")
    return KerasEstimator(
        **{**params, "store": store, "backend": backend, "feature_cols": ["z"], "label_cols": ["sum"], **options}
    )


def test_estimators_train_validate_and_store_the_model(tmp_path):
    fitter = estimator(tmp_path, validation=0.5, metrics=["mae"], batch_size=16, val_batch_size=7, run_id="r", epochs=8)
    model = fitter.setRandomSeed((1 << 40) + 2).fit_on_parquet()  # larger than NumPy's seeds
    assert isinstance(model, KerasModel)
    history = model.getHistory()
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    assert history["val_loss"][-1] < 0.02 < history["loss"][0]
    weights = model.getModel().get_weights()
    assert weights[0][:, 0] == pytest.approx(np.ones(4), abs=0.15)
    # Each validation has seen all of its rows once.
    error = np.abs(SCALE @ weights[0][:, 0] + weights[1][0] - SCALE.sum(1)).mean()
    assert history["val_mae"][-1] == pytest.approx(error, rel=1e-3)
    assert json.loads((tmp_path / "store/runs/r/logs/history.json").read_text()) == history
    (tmp_path / "model.keras").write_bytes((tmp_path / "store/runs/r/checkpoint").read_bytes())
    kept = keras.models.load_model(tmp_path / "model.keras")
    assert (kept.get_weights()[0] == weights[0]).all()
    again = estimator(tmp_path, run_id="r", epochs=1).fit_on_parquet()
    assert again.getHistory()["loss"][0] < history["loss"][0] / 5, "a run that is there goes on"


def test_a_compiled_model_needs_neither_optimizer_nor_loss(tmp_path):
    model = line(2, 2)  # the feature is reshaped to the input's shape
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    fitter = estimator(tmp_path, model=model, optimizer=None, loss=None)
    history = fitter.fit_on_parquet().getHistory()
    assert set(history) == {"loss", "mae"}
    assert history["loss"][-1] < history["loss"][0] / 3


def test_row_weights_two_outputs_and_a_custom_loss(tmp_path):
    def square(true, predicted):
        return keras.ops.mean(keras.ops.square(true - predicted), axis=-1)

    keras.utils.set_random_seed(1)
    inputs = keras.layers.Input((4,))
    model = keras.Model(inputs, [keras.layers.Dense(1, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)])
    before = model.layers[-1].get_weights()[0].copy()
    weight = np.arange(ROWS) % 2 * 1.0
    columns = {"w": weight, "p": np.where(weight > 0, SCALE.sum(1), 100.0).astype("float32")}
    fitter = estimator(
        tmp_path, columns, model=model, loss=[square, square], loss_weights=[1.0, 0.0], label_cols=["p", "sum"],
        label_shapes=[[1], [1]], sample_weight_col="w", epochs=20, batch_size=15,
    )  # fmt: skip
    trained = fitter.fit_on_parquet()
    assert trained.getModel().layers[-2].get_weights()[0][:, 0] == pytest.approx(np.ones(4), abs=0.1)
    assert (trained.getModel().layers[-1].get_weights()[0] == before).all()
    assert trained.getMetadata()["outputs"] == [[[1], "float32"], [[1], "float32"]]


def test_the_best_model_is_kept_by_a_callback(tmp_path):
    best = keras.callbacks.ModelCheckpoint("set by the estimator.keras", monitor="loss", save_best_only=True)

    class Spoil(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.set_weights([np.full((4, 1), 50.0), np.zeros(1)])

    fitter = estimator(tmp_path, checkpoint_callback=best, callbacks=[Spoil()], epochs=3, run_id="r")
    model = fitter.fit_on_parquet()
    assert model.getHistory()["loss"][2] > 100
    assert np.abs(model.getModel().get_weights()[0]).max() < 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnet"}, "model must be a model of Keras, got 'resnet'"),
        ({"loss": None}, "loss must be given: give both optimizer and loss, or neither with a compiled model"),
        ({"loss": None, "optimizer": None}, "optimizer and loss are not given, and model is not compiled"),
        ({"optimizer": 3}, "optimizer must be an optimizer of keras 3.*, got 3"),
        (
            {"feature_cols": ["z", "id"]},
            r"feature_cols must have a column for each of the model's 1 inputs, got \['z', 'id'\].*VectorAssembler",
        ),
        ({"feature_cols": ["id"]}, r"the model: the shape of feature 'id' must fit its rows of shape \[\], got \[4\]"),
        ({"data_module": NVTabularDataModule}, "NVTabular, which needs a GPU of NVIDIA"),
    ],
)
def test_mismatches_are_named(tmp_path, options, message):
    fitter = estimator(tmp_path, epochs=1)
    for name, value in options.items():
        getattr(fitter, f"set{fitter._rows[name].camel}")(value)
    with pytest.raises((ValueError, ImportError), match=message):
        fitter.fit_on_parquet()


def test_keras_objects_are_serialized_and_restored():
    packed = objects.pack(
        {"metrics": [keras.metrics.MeanSquaredError(name="m"), "mae"], "optimizer": keras.optimizers.Adam(0.5)}
    )
    back = objects.unpack(packed)
    assert back["metrics"][0].name == "m"
    assert back["metrics"][1] == "mae"
    assert float(back["optimizer"].learning_rate.numpy()) == 0.5
    model = objects.pack_model(line())
    assert (model.legacy, model.backend, model.floatx) == (False, "tensorflow", "float32")
    torn = objects.PackedModel(False, "tensorflow", "float32", model.file[:100])
    with pytest.raises(ValueError, match="the model cannot be loaded, custom_objects may lack something"):
        objects.unpack_model(torn)
    with pytest.raises(ImportError, match=r"the model is of Keras 3 on jax, this process has Keras 3.* on tensorflow"):
        objects.import_keras_for(objects.PackedModel(False, "jax", "float32", b""))
