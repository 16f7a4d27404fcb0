"""Batch prediction with a pandas UDF that adds a model's outputs to a DataFrame."""

import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.spark.common.columns import VECTOR, Column
from horovod.spark.common.prepare import array_of, without_decimals

Predict = Callable[[list[Any]], list[Any]]
"""Function from an array for each feature to an array for each output; dimension 0 is rows."""

_RESULT = "__horovod_outputs"


@dataclass(frozen=True)
class Output:
    """Column that contains an output of a model.

    Attributes:
        name: Name of the column.
        shape: Shape of the value in one row, or None if it is unknown. If it is unknown, the column contains arrays.
        dtype: Name of the NumPy dtype.
        vector: True if the column contains Spark ML vectors.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    vector: bool

    @property
    def scalar(self) -> bool:
        return self.shape is not None and math.prod(self.shape) == 1 and not self.vector

    @property
    def spark_type(self) -> str:
        number = {"float64": "double", "int64": "long", "int32": "int", "bool": "boolean"}.get(self.dtype, "float")
        return number if self.scalar else f"array<{number}>"


def add_outputs(
    df: Any,
    columns: Sequence[Column],
    outputs: Sequence[Output],
    load: Callable[[bytes], Predict],
    payload: bytes,
    batch_size: int,
) -> Any:
    """Return ``df`` with the outputs as additional columns.

    Tasks raise ValueError if a column has nulls, or rows of different shapes.

    Args:
        df: DataFrame with the model's input columns.
        columns: Input columns of the model.
        outputs: Columns to add.
        load: Function that converts ``payload`` to a Predict. Each task calls it once.
        payload: Serialized model.
        batch_size: Number of rows to predict together.
    """
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    inputs = []
    for column in columns:
        value = F.col("`" + column.name.replace("`", "``") + "`")
        vector = column.kind in (VECTOR, "sparse")
        kind = df.schema[column.name].dataType
        inputs.append(array_of(value, "float32") if vector else without_decimals(value, kind))
    schema = ", ".join(f"o{number} {output.spark_type}" for number, output in enumerate(outputs))
    shared = df.sparkSession.sparkContext.broadcast(payload)
    predict = F.pandas_udf(_in_batches(shared, load, list(columns), list(outputs), batch_size), schema)
    made = df.withColumn(_RESULT, predict(*inputs))
    for number, output in enumerate(outputs):
        value = F.col(f"{_RESULT}.o{number}")
        made = made.withColumn(output.name, array_to_vector(value) if output.vector else value)
    return made.drop(_RESULT)


def _in_batches(shared: Any, load: Any, columns: list[Column], outputs: list[Output], batch_size: int) -> Any:
    import pandas as pd

    def predict(parts: typing.Iterator[typing.Tuple[pd.Series, ...]]) -> typing.Iterator[pd.DataFrame]:  # noqa: UP006
        function = load(shared.value)
        for part in parts:
            # With a single column, pandas passes a Series instead of a tuple.
            part = (part,) if isinstance(part, pd.Series) else part
            arrays = [rows(series, column) for series, column in zip(part, columns, strict=True)]
            yield frame(function, arrays, outputs, batch_size)

    return predict


def rows(series: Any, column: Column) -> Any:
    """Convert a column of a batch (``pandas.Series``) to an array.

    Returns:
        The array.

    Raises:
        ValueError: If the column has nulls, or rows of unexpected shapes.
    """
    import numpy as np

    if series.isna().any():
        raise ValueError(f"column {column.name!r} must not have nulls")
    if column.kind == "number":
        return _number(series.to_numpy(), column)
    try:
        values = np.stack([_nested(value) for value in series]) if len(series) else np.empty((0, *(column.shape or ())))
    except ValueError as error:
        raise ValueError(f"column {column.name!r} must have arrays of one size: {error}") from error
    if column.shape is not None and values.shape[1:] != column.shape:
        raise ValueError(
            f"column {column.name!r} has arrays of shape {values.shape[1:]}, the model has been trained with "
            f"{column.shape}"
        )
    return values.astype(column.dtype) if column.dtype else values


def _number(values: Any, column: Column) -> Any:
    """Convert the values to the dtype used in training. Decimals arrive as Python objects."""
    if not column.dtype:
        return values
    made = values.astype(column.dtype)
    if made.dtype.kind in "iub" and (made != values).any():
        raise ValueError(f"column {column.name!r} has numbers that {column.dtype}, as in training, cannot hold")
    return made


def _nested(value: Any) -> Any:
    import numpy as np

    value = np.asarray(value)
    return np.stack([_nested(one) for one in value]) if value.dtype == object else value


def frame(function: Predict, arrays: list[Any], outputs: Sequence[Output], batch_size: int) -> Any:
    """Compute the outputs for a pandas batch, `batch_size` rows at a time, and return them as a pandas.DataFrame."""
    import numpy as np
    import pandas as pd

    predictions: list[list[Any]] = [[] for _ in outputs]
    for begin in range(0, len(arrays[0]), batch_size):
        results = function([array[begin : begin + batch_size] for array in arrays])
        if len(results) != len(outputs):
            names = ", ".join(output.name for output in outputs)
            raise ValueError(
                f"output_cols must have one name for each of the model's {len(results)} outputs, got {names}"
            )
        for kept, result in zip(predictions, results, strict=True):
            kept.append(np.asarray(result))
    columns = {}
    for number, (output, parts) in enumerate(zip(outputs, predictions, strict=True)):
        values = np.concatenate(parts) if parts else np.empty((0, 1))
        flat = values.reshape(len(values), -1)
        columns[f"o{number}"] = flat[:, 0] if output.scalar else list(flat)
    return pd.DataFrame(columns)
