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
        made = cls()
        for name, row in cls._rows.items():
            assert made.getParam(name).doc == row.doc
            assert getattr(made, f"get{row.camel}")() == row.default
            assert name in inspect.getdoc(getattr(cls, f"set{row.camel}"))
    assert {"getBatchSize", "setTrainStepsPerEpoch", "getRunId", "setInputShapes"} <= set(dir(TorchEstimator))


def test_the_constructor_takes_keywords_and_says_which():
    signature = inspect.signature(TorchEstimator)
    assert list(signature.parameters)[:4] == ["num_proc", "data_module", "model", "backend"]
    assert set(signature.parameters) == set(TorchEstimator._rows)
    assert signature.parameters["shuffle"].default is True
    assert "``batch_size``: rows of a rank and step" in TorchEstimator.__doc__
    with pytest.raises(TypeError, match="TorchEstimator has no argument 'batchsize'; there are num_proc, store"):
        TorchEstimator(batchsize=3)


def test_values_are_set_read_and_taken_back():
    made = TorchEstimator(batch_size=7, feature_cols=("a", "b"), epochs=None)
    assert (made.getBatchSize(), made.getFeatureCols(), made.getEpochs()) == (7, ["a", "b"], 1)
    assert made.setBatchSize(9) is made
    assert made.getBatchSize() == 9
    assert made.setBatchSize(None).getBatchSize() == 32
    other = made.copy({made.epochs: 5})
    assert (other.getEpochs(), made.getEpochs()) == (5, 1)
    made.getMetrics().append("of this one")
    assert TorchEstimator().getMetrics() == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("batch_size", 0, "batch_size is 0, accepted is an integer of at least 1"),
        (
            "random_seed",
            2**63,
            "random_seed is 9223372036854775808, accepted is an integer from 0 to 9223372036854775807",
        ),
        ("epochs", 1.5, "epochs is 1.5"),
        ("feature_cols", "features", "feature_cols is 'features', accepted is a list of names"),
        ("label_cols", ["y", "y"], "each once"),
        ("validation", 1.0, "validation is 1.0, accepted is a fraction from 0 to below 1, or the name"),
        ("shuffle", 1, "shuffle is 1, accepted is True or False"),
        ("reader_pool_type", "fast", "accepted is one of 'thread', 'process', 'dummy'"),
        ("input_shapes", [3], "input_shapes is"),
        ("transformation_fn", 3, "transformation_fn is 3, accepted is a function"),
        ("loss_weights", [True], "accepted is a list of numbers"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_accepted(name, value, words):
    with pytest.raises(ValueError, match=words):
        TorchEstimator(**{name: value})


def test_an_estimator_can_be_pickled():
    made = pickle.loads(pickle.dumps(TorchEstimator(batch_size=5, loss_weights=[1])))
    assert (made.getBatchSize(), made.getLossWeights()) == (5, [1.0])
