"""Data sets from existing Parquet files, written by any program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from horovod.data.parquet import opened
from horovod.data.row_groups import MIN_BUFFER, Checked
from horovod.spark.common.columns import NUMBERS, Column, Found, all_settled
from horovod.spark.common.file_store import AbstractFilesystemStore
from horovod.spark.common.parquet_parts import look, unpacked_field
from horovod.spark.common.reader import Table, TableFiles

_KINDS = set(NUMBERS.values())


def open_existing(
    store: AbstractFilesystemStore, folder: str, wanted: Mapping[str, Sequence[str]], transformed: bool
) -> Table:
    """Open the data set in a folder of a store, reading only the files' footers and the first rows of one file.

    Args:
        store: Store that contains the folder.
        folder: Folder with the Parquet files.
        wanted: Column names by the argument that names them; empty for all columns.
        transformed: Whether there is a transformation_fn, which can convert other types to numbers.

    Raises:
        ValueError: If the folder has no files, a file is damaged or has other columns, or a column is missing, has
            nulls or an unsupported type. The message names it.
    """
    files = store.parquet_files(folder)
    if not files:
        raise ValueError(f"{folder} has no files *.parquet")
    filesystem = store.arrow_filesystem()
    everything = TableFiles(files, None, filesystem)
    schema, first, nulls = _looked_into(files, filesystem)
    names: dict[str, str] = {}
    for argument, given in wanted.items():
        for name in given:
            if name in schema.names:
                names.setdefault(name, argument)
            elif not (transformed and argument in ("feature_cols", "label_cols")):
                raise ValueError(f"{argument} names {name!r}, {folder} has {', '.join(map(repr, schema.names))}")
    if not sum(everything.lengths):
        raise ValueError(f"{folder} has {len(files)} files, which have no rows")
    columns, found = [], {}
    for name in schema.names if transformed or not names else names:
        stored = unpacked_field(schema.field(name))
        if stored is not None:
            column = Column(name, "list", stored[0], len(stored[1]), stored[1])
            seen = Found(least=list(stored[1]), most=list(stored[1]))
        else:
            column = _column(name, schema.field(name).type, names.get(name, ""), transformed)
            seen = look(first.column(name).combine_chunks(), column)
        columns.append(replace(column, named=name in names or not names))
        found[name] = replace(seen, nulls=nulls.get(name, 0), rows=sum(everything.lengths))
    columns = list(all_settled(columns, found))
    return Table(TableFiles(files, columns, filesystem), tuple(columns))


def _looked_into(files: Sequence[str], filesystem: Any) -> tuple[Any, Any, dict[str, int]]:
    """Return the schema, the first rows of a file, and the number of nulls by column, from the files' statistics."""
    import pyarrow as pa

    schema: Any = None
    first: Any = None
    nulls: dict[str, int] = {}
    for path in files:
        with opened(path, filesystem, buffers=MIN_BUFFER) as (file, size):
            schema = schema or file.schema_arrow
            if (first is None or not first.num_rows) and file.num_row_groups:
                batch = next(file.iter_batches(batch_size=16), None)
                first = first if batch is None else pa.Table.from_batches([batch])
            for about in Checked(file.metadata, size, file.schema_arrow.names):
                for index in range(about.num_columns):
                    chunk = about.column(index)
                    name = chunk.path_in_schema
                    if chunk.is_stats_set and chunk.statistics.has_null_count and "." not in name:
                        nulls[name] = nulls.get(name, 0) + chunk.statistics.null_count
    if first is None:
        first = schema.empty_table()
    return schema, first, nulls


def _column(name: str, kind: Any, argument: str, transformed: bool) -> Column:
    import pyarrow as pa

    depth, inner = 0, kind
    while pa.types.is_list(inner) or pa.types.is_large_list(inner) or pa.types.is_fixed_size_list(inner):
        depth, inner = depth + 1, inner.value_type
    words = {"bool": "bool", "float": "float32", "double": "float64", "halffloat": "float16"}
    dtype = words.get(str(inner), str(inner))
    if dtype in _KINDS or dtype.startswith("uint"):
        return Column(name, "list" if depth else "number", dtype, depth)
    if pa.types.is_struct(kind) and {field.name for field in kind} == {"size", "indices", "values"}:
        return Column(name, "sparse", "float32", 1)
    if transformed:
        return Column(name, "other")
    if pa.types.is_struct(kind) and {field.name for field in kind} == {"type", "size", "indices", "values"}:
        raise ValueError(
            f"{argument}: column {name!r} has vectors of Spark ML as Spark writes them, accepted are lists: write the "
            f"column as pyspark.ml.functions.vector_to_array({name!r}), or let fit write it"
        )
    raise ValueError(
        f"{argument}: column {name!r} is of type {kind}, accepted are numbers, booleans and lists of numbers"
    )
