"""Conversion of a model's outputs to DataFrame columns, in batches."""

import decimal

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pandas")

import numpy as np
import pandas as pd

from horovod.spark.common.columns import Column
from horovod.spark.common.predict import Output, frame, rows

LIST = Column("x", "list", "float32", 1, (2,))


def test_rows_become_arrays():
    assert rows(pd.Series([1.5, 2.5]), Column("a", "number", "float64", 0, ())).tolist() == [1.5, 2.5]
    result = rows(pd.Series([np.array([1, 2]), [3, 4]]), LIST)
    assert result.tolist() == [[1, 2], [3, 4]]
    assert result.dtype == np.float32
    nested = pd.Series([np.array([np.array([1, 2]), np.array([3, 4])], dtype=object)] * 3)
    assert rows(nested, Column("x", "list", "float32", 2, (2, 2))).shape == (3, 2, 2)
    assert rows(pd.Series([], dtype=object), LIST).shape == (0, 2)


def test_numbers_are_converted_to_the_training_dtype():
    decimals = pd.Series([decimal.Decimal("1.5"), decimal.Decimal(2)])
    array = rows(decimals, Column("a", "number", "float64", 0, ()))
    assert (array.dtype, array.tolist()) == (np.float64, [1.5, 2.0])
    whole = rows(pd.Series([1, 2], dtype="int64"), Column("a", "number", "int32", 0, ()))
    assert (whole.dtype, whole.tolist()) == (np.int32, [1, 2])
    for wrong in ([0.5, 1.0], [1 << 40, 1]):
        with pytest.raises(ValueError, match="column 'a' has numbers that int32, as in training, cannot hold"):
            rows(pd.Series(wrong), Column("a", "number", "int32", 0, ()))


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (pd.Series([[1, 2], None]), "column 'x' must not have nulls"),
        (pd.Series([[1, 2], [1]]), "column 'x' must have arrays of one size"),
        (pd.Series([[1, 2, 3]]), r"column 'x' has arrays of shape \(3,\), the model has been trained with \(2,\)"),
    ],
)
def test_mismatched_rows_are_named(series, message):
    with pytest.raises(ValueError, match=message):
        rows(series, LIST)


def test_outputs_are_scalars_or_arrays_and_come_in_batches():
    sizes = []

    def predict(arrays):
        sizes.append(len(arrays[0]))
        return [arrays[0].sum(1, keepdims=True), np.repeat(arrays[0][:, None], 3, 1)]

    outputs = [Output("sum", (1,), "float32", False), Output("all", (3, 2), "float32", False)]
    result = frame(predict, [np.arange(10.0).reshape(5, 2)], outputs, 2)
    assert sizes == [2, 2, 1]
    assert result["o0"].tolist() == [1, 5, 9, 13, 17]
    assert result["o1"][1].tolist() == [2, 3] * 3
    assert [one.spark_type for one in outputs] == ["float", "array<float>"]
    assert Output("v", (1,), "float64", True).spark_type == "array<double>"
    with pytest.raises(ValueError, match="output_cols must have one name for each of the model's 2 outputs, got sum"):
        frame(predict, [np.zeros((1, 2))], outputs[:1], 2)
