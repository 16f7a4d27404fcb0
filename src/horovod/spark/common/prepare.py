"""Functions that write a DataFrame to a store as Parquet.

Spark tasks write the rows, so no row passes through the driver.
"""

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common.contract.log import warn_user
from horovod.spark.common.columns import VECTOR, Column, ColumnStatistics, all_settled, chosen
from horovod.spark.common.file_store import AbstractFilesystemStore
from horovod.spark.common.parquet_parts import IS_VALIDATION, REPORT, write_part

_ARRAY = "float32"
"""Dtype in which vectors are stored."""


@dataclass(frozen=True)
class WrittenData:
    """Data set that the driver has written to a store.

    Attributes:
        dataset_idx: Number of the data set.
        columns: Columns of the data set.
        train: Files for training.
        val: Files for validation. Empty without ``validation``.
        rows: Number of rows in all files, as counted by the tasks.
    """

    dataset_idx: int
    columns: tuple[Column, ...]
    train: tuple[str, ...]
    val: tuple[str, ...]
    rows: int


def columns_of(df: Any, requested: Mapping[str, Sequence[str]], transformed: bool, sparse: bool) -> list[Column]:
    """Return the columns of a DataFrame that an estimator uses, as selected by ``columns.chosen``."""
    fields = {field.name: field.dataType.jsonValue() for field in df.schema.fields}
    return chosen(fields, requested, transformed, sparse)


def check_validation(df: Any, validation: float | str | None) -> None:
    """Raise ValueError if `validation` names a column that does not exist or has an unsupported type."""
    if not isinstance(validation, str):
        return
    if validation not in df.columns:
        raise ValueError(
            "validation must be a fraction or name a column of the DataFrame, "
            f"{', '.join(map(repr, df.columns))}, got {validation!r}"
        )
    kind = df.schema[validation].dataType.typeName()
    if kind not in ("boolean", "byte", "short", "integer", "long", "float", "double"):
        raise ValueError(f"validation: column {validation!r} must have booleans or numbers, got {kind}")


def write(
    df: Any,
    store: AbstractFilesystemStore,
    columns: Sequence[Column],
    files: int,
    validation: float | str | None = None,
    shuffle: bool = True,
    seed: int | None = 0,
) -> WrittenData:
    """Write columns of a DataFrame to the store, as a new data set with a random number.

    If ``seed`` is not None, identical rows produce identical data sets, regardless of the DataFrame's partitions and
    the tasks' hosts. Spark computes the DataFrame only once. If an error occurs, all files are removed.

    Args:
        df: DataFrame with the rows.
        store: Store to write to.
        columns: Columns to write.
        files: Approximate number of files.
        validation: Fraction of the rows for validation, or the column that is True (or not 0) in these rows.
        shuffle: True to distribute neighboring rows to different files.
        seed: Seed for choosing validation rows and for shuffling.

    Returns:
        The data set.

    Raises:
        ValueError: If a column has nulls or rows of different shapes, or if there are no rows to train or validate
            with.
        StoreNotWritableError: If the store cannot be written.
    """
    store.check_writable()
    number = secrets.randbelow(10**9)
    folders = [store.get_train_data_path(number), *([store.get_val_data_path(number)] if validation else [])]
    columns = list(columns)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        return write_part(batches, store, folders, columns, context.partitionId() if context else 0)

    try:
        used = [column.name for column in columns] + ([validation] if isinstance(validation, str) else [])
        ordered = _shuffled(df, used, files, seed) if shuffle else df.coalesce(files)
        ready = _selected(ordered, columns, validation, seed or 0)
        rows = ready.mapInArrow(task, REPORT).collect()
        train = tuple(sorted(row.path for row in rows if not row.validation))
        val = tuple(sorted(row.path for row in rows if row.validation))
        _check_rows(train, val, validation)
        settled = all_settled(columns, _combined(columns, rows))
        made = WrittenData(number, settled, train, val, sum(row.rows for row in rows))
        store.wait_for([*made.train, *made.val])
    except BaseException:
        remove(store, number)
        raise
    return made


def remove(store: AbstractFilesystemStore, number: int) -> None:
    """Remove the files of a data set that ``write`` created. Only warn if this fails."""
    for folder in (store.get_train_data_path(number), store.get_val_data_path(number)):
        try:
            store.remove(folder)
        except Exception as error:  # Catch all exceptions, because each file system has its own exception types.
            warn_user(f"{folder} could not be removed: {type(error).__name__}: {error}")


def _shuffled(df: Any, names: Sequence[str], files: int, seed: int | None) -> Any:
    """Return the rows, shuffled into `files` partitions.

    With a seed, rows are sorted by a hash of their contents, so each call returns the same order. Rows with equal
    contents are numbered, and the number is also hashed, so that they spread over all partitions. Spark's round-robin
    partitioning would choose different validation rows in each call, because it depends on the order of arrival.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    kinds = {name: df.schema[name].dataType.simpleString() for name in names}
    # Omit map and variant columns, which Spark cannot hash.
    hashed = [F.col(_quoted(name)) for name, kind in kinds.items() if "map<" not in kind and "variant" not in kind]
    if seed is None or not hashed:
        return df.repartition(files)
    row = F.xxhash64(F.lit(seed), *hashed)
    number = F.row_number().over(Window.partitionBy(row).orderBy(row))
    place = "_" * (1 + max(map(len, names)))  # Longer than all other names, and thus different from them.
    placed = df.select(*(F.col(_quoted(name)) for name in kinds), F.xxhash64(row, number).alias(place))
    return placed.repartition(files, place).sortWithinPartitions(place).drop(place)


def _selected(df: Any, columns: Sequence[Column], validation: float | str | None, seed: int) -> Any:
    from pyspark.sql import functions as F

    # Rename the columns, because mapInArrow interprets a dot in a name as a field of a struct.
    selected = []
    for place, column in enumerate(columns):
        value = F.col(_quoted(column.name))
        if column.kind in (VECTOR, "sparse"):
            value = array_of(value, _ARRAY)
        else:
            value = without_decimals(value, df.schema[column.name].dataType)
        selected.append(value.alias(f"c{place}"))
    if isinstance(validation, str):
        selected.append(F.coalesce(F.col(_quoted(validation)).cast("boolean"), F.lit(False)).alias(IS_VALIDATION))
    elif validation:
        selected.append((F.rand(seed) < validation).alias(IS_VALIDATION))
    ready = df.select(*selected)
    for place, column in enumerate(columns):
        if column.kind == "sparse":
            ready = ready.withColumn(f"c{place}", _sparse(F.col(f"c{place}")))
    return ready


def array_of(vector: Any, dtype: str) -> Any:
    """Convert a column (``pyspark.sql.Column``) of vectors to arrays. Unlike Spark's function, it accepts nulls."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    return F.when(vector.isNotNull(), vector_to_array(vector, dtype))


def without_decimals(value: Any, kind: Any) -> Any:
    """Convert decimals in a column (``pyspark.sql.Column``) of type ``kind`` to doubles, even within arrays."""
    kind = kind.simpleString()
    numbers = re.sub(r"decimal\(\d+,\d+\)", "double", kind)
    return value.cast(numbers) if numbers != kind else value


def _sparse(array: Any) -> Any:
    """Convert a column of arrays to structs that hold the size, and the indices and values of non-zero elements."""
    from pyspark.sql import functions as F

    places = F.filter(F.sequence(F.lit(0), F.size(array) - 1), lambda place: array[place] != 0)
    struct = F.struct(
        F.size(array).alias("size"),
        F.when(F.size(array) > 0, places).otherwise(F.array().cast("array<int>")).alias("indices"),
        F.filter(array, lambda one: one != 0).alias("values"),
    )
    return F.when(array.isNotNull(), struct)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _combined(columns: Sequence[Column], rows: Sequence[Any]) -> dict[str, ColumnStatistics]:
    found = {column.name: ColumnStatistics() for column in columns}
    for row in rows:
        for name, seen in json.loads(row.found).items():
            found[name].add(ColumnStatistics(**seen))
    return found


def _check_rows(train: Sequence[str], val: Sequence[str], validation: float | str | None) -> None:
    if not train:
        raise ValueError(
            f"the DataFrame has no rows to train with{f' (validation={validation!r})' if validation else ''}"
        )
    if validation and not val:
        raise ValueError(f"validation={validation!r} leaves no rows to validate with")
