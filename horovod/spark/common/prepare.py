"""A DataFrame as Parquet in a store, once: its tasks write the files, so no row goes through the driver."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common.contract.frames import warn_user
from horovod.spark.common.columns import VECTOR, Column, Found, all_settled, chosen
from horovod.spark.common.file_store import AbstractFilesystemStore
from horovod.spark.common.parquet_parts import IS_VALIDATION, REPORT, write_part

_ARRAY = "float32"
"""What vectors are stored as."""


@dataclass(frozen=True)
class Written:
    """A data set in a store. ``val``: files of the rows to validate with, none without ``validation``. ``rows``: of
    both together, as the tasks have counted them."""

    dataset_idx: int
    columns: tuple[Column, ...]
    train: tuple[str, ...]
    val: tuple[str, ...]
    rows: int


def columns_of(df: Any, wanted: Mapping[str, Sequence[str]], transformed: bool, sparse: bool) -> list[Column]:
    """The columns of a DataFrame that are used; see ``columns.chosen``."""
    fields = {field.name: field.dataType.jsonValue() for field in df.schema.fields}
    return chosen(fields, wanted, transformed, sparse)


def check_validation(df: Any, validation: float | str | None) -> None:
    """Raises ValueError for a column that is not there, or none of booleans or numbers."""
    if not isinstance(validation, str):
        return
    if validation not in df.columns:
        raise ValueError(
            f"validation names {validation!r}, the DataFrame has {', '.join(map(repr, df.columns))}; accepted is a "
            "fraction too"
        )
    kind = df.schema[validation].dataType.typeName()
    if kind not in ("boolean", "byte", "short", "integer", "long", "float", "double"):
        raise ValueError(f"validation: column {validation!r} is of type {kind}, accepted are booleans and numbers")


def write(
    df: Any,
    store: AbstractFilesystemStore,
    columns: Sequence[Column],
    files: int,
    validation: float | str | None = None,
    shuffle: bool = True,
    seed: int | None = 0,
) -> Written:
    """Writes the columns of ``df`` into the store, in about so many ``files``, under a number of its own.

    ``validation``: a fraction of the rows, chosen by ``seed``, or a column, whose rows with True (or not 0) are to
    validate with. ``shuffle``: rows that are neighbours go to different files. With a ``seed`` the same rows make the
    same data set, wherever tasks have run and however the DataFrame was partitioned. It is computed once. Raises
    ValueError naming the column where rows lack values or differ in their shapes, and where no rows are left to train
    or validate with; StoreNotWritableError. Leaves nothing behind when it fails."""
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
        settled = all_settled(columns, _together(columns, rows))
        made = Written(number, settled, train, val, sum(row.rows for row in rows))
        store.wait_for([*made.train, *made.val])
    except BaseException:
        remove(store, number)
        raise
    return made


def remove(store: AbstractFilesystemStore, number: int) -> None:
    """What ``write`` has written. What cannot be removed is told of and stays: nothing is lost by it."""
    for folder in (store.get_train_data_path(number), store.get_val_data_path(number)):
        try:
            store.remove(folder)
        except Exception as error:  # each file system has errors of its own
            warn_user(f"{folder} could not be removed, and stays: {type(error).__name__}: {error}")


def _shuffled(df: Any, names: Sequence[str], files: int, seed: int | None) -> Any:
    """The rows in so many partitions: with a seed in an order that the rows themselves, and nothing else, decide. So
    that equal rows are spread, too, each has a number among them; it does not matter which of them has which.

    Spark's own round robin depends on how the rows are partitioned, and leaves them in the order in which the parts of
    a partition happen to arrive, by which a fraction to validate with would be of other rows each time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    kinds = {name: df.schema[name].dataType.simpleString() for name in names}
    # Spark has no hashes of maps and variants.
    hashed = [F.col(_quoted(name)) for name, kind in kinds.items() if "map<" not in kind and "variant" not in kind]
    if seed is None or not hashed:
        return df.repartition(files)
    row = F.xxhash64(F.lit(seed), *hashed)
    number = F.row_number().over(Window.partitionBy(row).orderBy(row))
    place = "_" * (1 + max(map(len, names)))  # longer than the names that are there
    placed = df.select(*(F.col(_quoted(name)) for name in kinds), F.xxhash64(row, number).alias(place))
    return placed.repartition(files, place).sortWithinPartitions(place).drop(place)


def _selected(df: Any, columns: Sequence[Column], validation: float | str | None, seed: int) -> Any:
    from pyspark.sql import functions as F

    # Under names of ours: mapInArrow takes a dot in a name for a field of a struct.
    made = []
    for place, column in enumerate(columns):
        value = F.col(_quoted(column.name))
        if column.kind in (VECTOR, "sparse"):
            value = array_of(value, _ARRAY)
        else:
            value = without_decimals(value, df.schema[column.name].dataType)
        made.append(value.alias(f"c{place}"))
    if isinstance(validation, str):
        made.append(F.coalesce(F.col(_quoted(validation)).cast("boolean"), F.lit(False)).alias(IS_VALIDATION))
    elif validation:
        made.append((F.rand(seed) < validation).alias(IS_VALIDATION))
    ready = df.select(*made)
    for place, column in enumerate(columns):
        if column.kind == "sparse":
            ready = ready.withColumn(f"c{place}", _sparse(F.col(f"c{place}")))
    return ready


def array_of(vector: Any, dtype: str) -> Any:
    """A column (``pyspark.sql.Column``) of vectors as one of arrays; a row without one stays so, which Spark's own
    function fails at."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    return F.when(vector.isNotNull(), vector_to_array(vector, dtype))


def without_decimals(value: Any, kind: Any) -> Any:
    """A column (``pyspark.sql.Column``) of type ``kind``, in which decimals, also those of arrays, are doubles."""
    kind = kind.simpleString()
    numbers = re.sub(r"decimal\(\d+,\d+\)", "double", kind)
    return value.cast(numbers) if numbers != kind else value


def _sparse(array: Any) -> Any:
    """A column of arrays as structs of their size, and the places and values of what is not 0."""
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


def _together(columns: Sequence[Column], rows: Sequence[Any]) -> dict[str, Found]:
    found = {column.name: Found() for column in columns}
    for row in rows:
        for name, seen in json.loads(row.found).items():
            found[name].add(Found(**seen))
    return found


def _check_rows(train: Sequence[str], val: Sequence[str], validation: float | str | None) -> None:
    if not train:
        raise ValueError(
            f"no rows to train with are in the DataFrame{f' (validation={validation!r})' if validation else ''}"
        )
    if validation and not val:
        raise ValueError(f"validation={validation!r} leaves no rows to validate with")
