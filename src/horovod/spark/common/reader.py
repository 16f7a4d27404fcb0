"""Reader that provides each rank with batches of a Parquet data set, based on horovod.data."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from horovod.data import ParquetFiles, StreamingDataset
from horovod.data.parquet import opened
from horovod.data.row_groups import MIN_BUFFER, Checked
from horovod.spark.common.columns import NUMBERS, Column, ColumnStatistics, all_settled
from horovod.spark.common.file_store import AbstractFilesystemStore
from horovod.spark.common.parquet_parts import look, unpacked, unpacked_field

MIXED_BYTES = 32 << 20
"""Size, as arrays, of the row groups whose rows a rank mixes, and therefore holds in memory."""

BLOCK_BYTES = 16 << 20
"""Largest size, as arrays, of a row group that is read at once; larger ones are read in parts."""

Batch = dict[str, Any]
"""Map from column names to NumPy arrays, whose dimension 0 is the rows."""


class TableFiles(ParquetFiles):
    """Reader for Parquet files that ``parquet_parts`` has written. It returns all columns as dense arrays.

    The files contain arrays as binary values, and sparse vectors as structs with the fields ``size``, ``indices`` and
    ``values``.
    """

    def __init__(self, files: Sequence[str], columns: Sequence[Column] | None, filesystem: Any) -> None:
        """Open the Parquet files. Raises the same exceptions as ParquetFiles.

        Args:
            files: Paths of the files.
            columns: Columns to read, or None for all.
            filesystem: File system for pyarrow, or None for the local one.
        """
        names = None if columns is None else [column.name for column in columns]
        lists = [column for column in columns or () if column.kind in ("list", "vector") and column.shape is not None]
        self._stored = {column.name: (column.dtype, column.shape) for column in lists}
        sparse = [column for column in columns or () if column.kind == "sparse" and column.shape is not None]
        self._sparse = {column.name: column.size for column in sparse}
        super().__init__(list(files), names, {column.name: column.shape for column in lists}, filesystem, BLOCK_BYTES)

    def array(self, name: str, column: Any, where: str) -> Any:
        import pyarrow as pa

        if pa.types.is_fixed_size_binary(column.type) and name in self._stored:
            return unpacked(column.chunks, *self._stored[name])
        if pa.types.is_struct(column.type):
            return _dense(column.combine_chunks(), where, self._sparse.get(name))
        return super().array(name, column, where)


def _dense(column: Any, where: str, known: int | None) -> Any:
    """Convert sparse vectors to dense arrays.

    ``known`` is the size of the vectors in the row groups read before, which must be the same. It is None if the size
    is not known yet.

    Returns:
        The arrays.

    Raises:
        ValueError: If vectors have different sizes.
    """
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    arrays = []
    sizes = set() if known is None else {known}
    for chunk in chunks:
        size = chunk.field("size").to_numpy(zero_copy_only=False)
        sizes.update(size.tolist())
        if len(sizes) > 1:
            raise ValueError(f"{where} must have vectors of one size, got {min(sizes)} and {max(sizes)} elements")
        indices, values = chunk.field("indices"), chunk.field("values")
        dense = np.zeros((len(chunk), int(size.max()) if len(chunk) else 0), np.float32)
        rows = np.repeat(np.arange(len(chunk)), np.diff(indices.offsets.to_numpy()))
        dense[rows, indices.flatten().to_numpy()] = values.flatten().to_numpy()
        arrays.append(dense)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass
class Table:
    """Parquet data set with its files and columns. It is picklable, so ranks need not read the metadata again."""

    source: TableFiles
    columns: tuple[Column, ...]

    @property
    def rows(self) -> int:
        return sum(self.source.lengths)

    def mix(self, ranks: int) -> int:
        """Return the number of blocks that a rank reads at once to shuffle their rows.

        A block is a row group, or a part of a large one. The blocks need about MIXED_BYTES of memory. The result is at
        least 1, and at most the number of blocks that each rank gets.
        """
        row = sum(max(1, column.size) * np.dtype(column.dtype or "S64").itemsize for column in self.columns)
        most = max(self.source.lengths, default=1)
        fair = len(self.source.lengths) // ranks
        return max(1, min(fair, MIXED_BYTES // max(1, row * most)))

    def steps(self, ranks: int, batch_size: int) -> int:
        """Return the number of batches per epoch, which is equal on all ranks. The last batch can be smaller."""
        return math.ceil(math.ceil(self.rows / ranks) / batch_size)


def open_table(store: AbstractFilesystemStore, files: Sequence[str], columns: Sequence[Column]) -> Table:
    """Open Parquet files as a data set.

    Returns:
        The data set.

    Raises:
        ValueError: If a file is damaged, or if its columns differ from the columns of the first file.
    """
    return Table(TableFiles(files, columns, store.arrow_filesystem()), tuple(columns))


class Batches:
    """Stream of batches of a data set for one rank."""

    def __init__(
        self,
        table: Table,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        cache: bool = False,
    ) -> None:
        """Create the stream of batches.

        Args:
            table: Data set to read.
            batch_size: Rows per batch.
            shuffle: True if each epoch has a different order, which is the same on all ranks.
            seed: Seed for the order of rows.
            rank: Rank that reads the batches.
            ranks: Number of ranks.
            cache: True to read the rank's rows once and keep them in memory. Each epoch then has the same rows.
        """
        self.table, self.batch_size, self.cache = table, batch_size, cache
        self._shuffle, self._seed = shuffle, seed
        self._stream = StreamingDataset(
            table.source, batch_size, shuffle, seed, mix=table.mix(ranks), rank=_Number(rank), size=_Number(ranks)
        )
        self._cached: Batch | None = None
        self._rank = rank

    def __len__(self) -> int:
        """Return the number of batches per epoch, which is equal on all ranks."""
        return len(self._stream)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch. The first epoch has ``number`` 0."""
        if self.cache:
            yield from self._from_memory(number)
            return
        self._stream.set_epoch(number)
        yield from self._stream

    def forever(self) -> Iterator[Batch]:
        """Yield the batches of all epochs endlessly, so that prefetching continues across epochs."""
        number = 0
        while True:
            yield from self.epoch(number)
            number += 1

    def first(self, steps: int) -> Iterator[Batch]:
        """Yield the first `steps` batches of epoch 0, over and over."""
        while True:
            taken = 0
            while taken < steps:
                for batch in self.epoch(0):
                    yield batch
                    taken += 1
                    if taken == steps:
                        break

    def _from_memory(self, number: int) -> Iterator[Batch]:
        if self._cached is None:
            parts = list(self._stream)
            self._cached = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        rows = len(next(iter(self._cached.values())))
        order = np.random.RandomState([self._seed & 0xFFFFFFFF, self._rank, number]).permutation(rows)
        for begin in range(0, rows, self.batch_size):
            chosen = order[begin : begin + self.batch_size] if self._shuffle else slice(begin, begin + self.batch_size)
            yield {name: values[chosen] for name, values in self._cached.items()}


class _Number:
    """Picklable replacement for ``lambda: number``."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self) -> int:
        return self._number


def transformed(batch: Batch, function: Any, edited: Sequence[Any] | None, removed: Sequence[str] | None) -> Batch:
    """Apply a transformation_fn to a batch.

    Args:
        batch: Batch to transform.
        function: Function that takes a pandas.DataFrame and returns another one.
        edited: Columns that the function adds, as (name, dtype, shape, nullable).
        removed: Columns to omit from the result.

    Returns:
        The new batch.

    Raises:
        ValueError: If ``function`` does not return a pandas.DataFrame, or if a column has rows of different shapes.
    """
    import pandas as pd

    frame = pd.DataFrame({name: list(values) if values.ndim > 1 else values for name, values in batch.items()})
    made = function(frame)
    if not isinstance(made, pd.DataFrame):
        raise ValueError(f"transformation_fn must return a pandas.DataFrame, got a {type(made).__name__}")
    fields: Mapping[str, Any] = {field[0]: field for field in edited or ()}
    result = {}
    for name in made.columns:
        if name in (removed or ()):
            continue
        values = made[name].to_numpy()
        try:
            values = (
                np.stack(values) if values.dtype == object and len(values) and hasattr(values[0], "shape") else values
            )
            if name in fields:
                _, dtype, shape, *_ = fields[name]
                values = np.asarray(values.tolist() if values.dtype == object else values, dtype)
                values = values.reshape(len(made), *shape) if shape and None not in shape else values
        except (TypeError, ValueError) as error:
            raise ValueError(f"transformation_fn: column {name!r} cannot become one array: {error}") from error
        result[name] = values
    return result


# -- data sets from existing files, written by any program -----------------------------------------------------------

_KINDS = set(NUMBERS.values())


def open_existing(
    store: AbstractFilesystemStore, folder: str, requested: Mapping[str, Sequence[str]], transformed: bool
) -> Table:
    """Open the data set in a folder of a store. Only footers and the first rows of one file are read.

    Args:
        store: Store that contains the folder.
        folder: Folder with the Parquet files.
        requested: Column names, keyed by the argument that lists them, or an empty mapping for all columns.
        transformed: True if there is a transformation_fn, which can convert other types to numbers.

    Returns:
        The data set.

    Raises:
        ValueError: If the folder has no files, a file is damaged, the files have different columns, or a column is
            missing, has nulls or has an unsupported type.
    """
    files = store.parquet_files(folder)
    if not files:
        raise ValueError(f"{folder} has no files *.parquet")
    filesystem = store.arrow_filesystem()
    everything = TableFiles(files, None, filesystem)
    schema, first, nulls = _looked_into(files, filesystem)
    names: dict[str, str] = {}
    for argument, given in requested.items():
        for name in given:
            if name in schema.names:
                names.setdefault(name, argument)
            elif not (transformed and argument in ("feature_cols", "label_cols")):
                raise ValueError(
                    f"{argument} must name columns of {folder}, {', '.join(map(repr, schema.names))}, got {name!r}"
                )
    if not sum(everything.lengths):
        raise ValueError(f"{folder} has {len(files)} files, which have no rows")
    columns, found = [], {}
    for name in schema.names if transformed or not names else names:
        stored = unpacked_field(schema.field(name))
        if stored is not None:
            column = Column(name, "list", stored[0], len(stored[1]), stored[1])
            seen = ColumnStatistics(least=list(stored[1]), most=list(stored[1]))
        else:
            column = _column(name, schema.field(name).type, names.get(name, ""), transformed)
            seen = look(first.column(name).combine_chunks(), column)
        columns.append(replace(column, named=name in names or not names))
        found[name] = replace(seen, nulls=nulls.get(name, 0), rows=sum(everything.lengths))
    columns = list(all_settled(columns, found))
    return Table(TableFiles(files, columns, filesystem), tuple(columns))


def _looked_into(files: Sequence[str], filesystem: Any) -> tuple[Any, Any, dict[str, int]]:
    """Return the schema, the first rows of a file, and the number of nulls of each column."""
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
            f"{argument}: column {name!r} must have lists, got vectors of Spark ML as Spark writes them; write the "
            f"column as pyspark.ml.functions.vector_to_array({name!r}), or let fit write it"
        )
    raise ValueError(f"{argument}: column {name!r} must have numbers, booleans or lists of numbers, got {kind}")
