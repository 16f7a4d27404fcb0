"""Params: one table that generates setters, getters, the constructor and its help."""

import inspect
import pickle

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from horovod.spark.common.params import EstimatorParams, ModelParams
from horovod.spark.torch import TorchEstimator, TorchModel


def test_every_row_is_a_param_with_getter_and_setter():
    for cls in (EstimatorParams, ModelParams, TorchEstimator, TorchModel):
        params = cls()
        for name, row in cls._rows.items():
            assert params.getParam(name).doc == row.doc
            assert getattr(params, f"get{row.camel}")() == row.default
            assert name in inspect.getdoc(getattr(cls, f"set{row.camel}"))
    assert {"getBatchSize", "setTrainStepsPerEpoch", "getRunId", "setInputShapes"} <= set(dir(TorchEstimator))


def test_the_constructor_takes_documented_keywords():
    signature = inspect.signature(TorchEstimator)
    assert list(signature.parameters)[:4] == ["num_proc", "data_module", "model", "backend"]
    assert set(signature.parameters) == set(TorchEstimator._rows)
    assert signature.parameters["shuffle"].default is True
    assert "``batch_size``: rows of a rank and step" in TorchEstimator.__doc__
    with pytest.raises(TypeError, match="TorchEstimator has no argument 'batchsize'; there are num_proc, store"):
        TorchEstimator(batchsize=3)


def test_values_are_set_read_and_cleared():
    estimator = TorchEstimator(batch_size=7, feature_cols=("a", "b"), epochs=None)
    assert (estimator.getBatchSize(), estimator.getFeatureCols(), estimator.getEpochs()) == (7, ["a", "b"], 1)
    assert estimator.setBatchSize(9) is estimator
    assert estimator.getBatchSize() == 9
    assert estimator.setBatchSize(None).getBatchSize() == 32
    other = estimator.copy({estimator.epochs: 5})
    assert (other.getEpochs(), estimator.getEpochs()) == (5, 1)
    estimator.getMetrics().append("of this one")
    assert TorchEstimator().getMetrics() == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", 0, "batch_size must be an integer of at least 1, got 0"),
        ("random_seed", 2**63, "random_seed must be an integer from 0 to 9223372036854775807, got 9223372036854775808"),
        ("epochs", 1.5, "epochs must be an integer of at least 1, got 1.5"),
        ("feature_cols", "features", "feature_cols must be a list of column names, got 'features'"),
        ("label_cols", ["y", "y"], "a list of column names without duplicates"),
        (
            "validation",
            1.0,
            "validation must be a fraction of at least 0 and below 1, or the name of a column, got 1.0",
        ),
        ("shuffle", 1, "shuffle must be True or False, got 1"),
        ("reader_pool_type", "fast", "reader_pool_type must be one of 'thread', 'process', 'dummy', got 'fast'"),
        ("input_shapes", [3], "input_shapes must be"),
        ("transformation_fn", 3, "transformation_fn must be a function, got 3"),
        ("loss_weights", [True], "loss_weights must be a list of numbers, got"),
    ],
)
def test_wrong_values_are_named_with_accepted_ones(name, value, message):
    with pytest.raises(ValueError, match=message):
        TorchEstimator(**{name: value})


def test_an_estimator_can_be_pickled():
    estimator = pickle.loads(pickle.dumps(TorchEstimator(batch_size=5, loss_weights=[1])))
    assert (estimator.getBatchSize(), estimator.getLossWeights()) == (5, [1.0])
