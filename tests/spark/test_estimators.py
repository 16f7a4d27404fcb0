"""The PyTorch and Lightning estimators learn digits on two ranks, as stages of a Pipeline that is saved and loaded."""

import os

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from horovod.spark.common.backend import LocalBackend
from horovod.spark.common.store import LocalStore
from tests.spark import digits


@pytest.fixture(scope="module")
def frame(session):
    frame = digits.frame(session).cache()
    yield frame
    frame.unpersist()


def right(output, label):
    return (output.argmax(1) == label).float().mean()


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def settings(folder, **options):
    params = {"batch_size": 32, "epochs": 6, "random_seed": 3, "validation": 0.2, "verbose": 2}
    return {
        "store": LocalStore(folder), "backend": LocalBackend(2), "partitions_per_process": 2,
        "feature_cols": ["features"], "label_cols": ["label"], **params, **options,
    }  # fmt: skip


def of_torch(estimator_class, folder, **options):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    params = {"optimizer": optimizer, "loss": torch.nn.CrossEntropyLoss(), "metrics": [right]}
    return estimator_class(model=model, **params, **settings(folder, **options))


def test_a_pipeline_learns_digits_and_its_model_can_be_loaded(frame, tmp_path):
    from pyspark.ml import Pipeline, PipelineModel

    from horovod.spark.torch import TorchEstimator

    store = tmp_path / "store"
    Pipeline(stages=[of_torch(TorchEstimator, store)]).write().save(f"{tmp_path}/pipeline")
    fitted = Pipeline.load(f"{tmp_path}/pipeline").fit(frame)
    history = fitted.stages[0].getHistory()
    assert history["val_right"][-1] > 0.93
    assert os.listdir(store) == ["runs"], "the data are removed when the training ends"
    fitted.write().save(f"{tmp_path}/model")
    loaded = PipelineModel.load(f"{tmp_path}/model")
    assert loaded.stages[0].getRunId() == fitted.stages[0].getRunId()
    assert loaded.stages[0].getHistory() == history
    predictions = loaded.transform(frame)
    assert dict(predictions.dtypes)["label__output"] == "array<float>"
    rows = predictions.collect()
    assert len(rows) == 1797
    assert digits.accuracy(rows) > 0.94
    with pytest.raises(ValueError, match=r"must contain a TorchEstimator, got a .*TorchModel"):
        TorchEstimator.load(f"{tmp_path}/model/stages/0_{loaded.stages[0].uid}")
