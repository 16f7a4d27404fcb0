"""Data sets of Parquet as batches for ranks: on top of horovod.data, which shares rows out by row groups."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod.data import ParquetFiles, StreamingDataset
from horovod.spark.common.columns import Column
from horovod.spark.common.file_store import AbstractFilesystemStore
from horovod.spark.common.parquet_parts import unpacked

MIXED_BYTES = 32 << 20
"""Of row groups whose rows are mixed, as arrays: so much a rank holds."""

BLOCK_BYTES = 16 << 20
"""Of a row group, as arrays, that is held whole; larger ones are read in parts."""

Batch = dict[str, Any]
"""NumPy arrays by column; the first dimension is that of rows."""


class TableFiles(ParquetFiles):
    """Files of Parquet in which bytes may be arrays (see ``parquet_parts``), and structs of ``size``, ``indices`` and
    ``values`` sparse vectors: arrays of zeros and these values."""

    def __init__(self, files: Sequence[str], columns: Sequence[Column] | None, filesystem: Any) -> None:
        """``columns``: None for all of the files'. Raises what ParquetFiles does."""
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
    """Arrays of sparse vectors. ``known``: their size in other row groups."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    made = []
    sizes = set() if known is None else {known}
    for chunk in chunks:
        size = chunk.field("size").to_numpy(zero_copy_only=False)
        sizes.update(size.tolist())
        if len(sizes) > 1:
            raise ValueError(f"{where} has vectors of {min(sizes)} and of {max(sizes)} elements, accepted is one size")
        indices, values = chunk.field("indices"), chunk.field("values")
        dense = np.zeros((len(chunk), int(size.max()) if len(chunk) else 0), np.float32)
        rows = np.repeat(np.arange(len(chunk)), np.diff(indices.offsets.to_numpy()))
        dense[rows, indices.flatten().to_numpy()] = values.flatten().to_numpy()
        made.append(dense)
    return made[0] if len(made) == 1 else np.concatenate(made)


@dataclass
class Table:
    """A data set: its files, looked into on the driver, and what their columns are. Can be pickled."""

    source: TableFiles
    columns: tuple[Column, ...]

    @property
    def rows(self) -> int:
        return sum(self.source.lengths)

    def mix(self, ranks: int) -> int:
        """Row groups, or parts of them, whose rows are mixed: so that a rank holds about MIXED_BYTES, but at least one
        of them, and at most as many as there are for each rank."""
        row = sum(max(1, column.size) * np.dtype(column.dtype or "S64").itemsize for column in self.columns)
        most = max(self.source.lengths, default=1)
        fair = len(self.source.lengths) // ranks
        return max(1, min(fair, MIXED_BYTES // max(1, row * most)))

    def steps(self, ranks: int, batch_size: int) -> int:
        """Batches of each rank, the last of which may be smaller: all ranks have equally many, of the same sizes."""
        return math.ceil(math.ceil(self.rows / ranks) / batch_size)


def open_table(store: AbstractFilesystemStore, files: Sequence[str], columns: Sequence[Column]) -> Table:
    """Raises ValueError naming a file that is torn or has other columns than the first one."""
    return Table(TableFiles(files, columns, store.arrow_filesystem()), tuple(columns))


class Batches:
    """A rank's batches of a table."""

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
        """``batch_size``: rows. ``shuffle``: another order in each epoch, the same on all ranks. ``rank``, ``ranks``:
        whose they are. ``cache``: the rank's rows are read once, and kept; each epoch it has the same rows."""
        self.table, self.batch_size, self.cache = table, batch_size, cache
        self._shuffle, self._seed = shuffle, seed
        self._stream = StreamingDataset(
            table.source, batch_size, shuffle, seed, mix=table.mix(ranks), rank=_Number(rank), size=_Number(ranks)
        )
        self._kept: Batch | None = None
        self._rank = rank

    def __len__(self) -> int:
        """Of an epoch: equally many on all ranks."""
        return len(self._stream)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch ``number``, from 0."""
        if self.cache:
            yield from self._from_memory(number)
            return
        self._stream.set_epoch(number)
        yield from self._stream

    def forever(self) -> Iterator[Batch]:
        """One epoch after the other: so what reads ahead has the next one's first batch when it is wanted."""
        number = 0
        while True:
            yield from self.epoch(number)
            number += 1

    def first(self, steps: int) -> Iterator[Batch]:
        """The same so many batches again and again."""
        while True:
            taken = 0
            while taken < steps:
                for batch in self.epoch(0):
                    yield batch
                    taken += 1
                    if taken == steps:
                        break

    def _from_memory(self, number: int) -> Iterator[Batch]:
        if self._kept is None:
            parts = list(self._stream)
            self._kept = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        rows = len(next(iter(self._kept.values())))
        order = np.random.RandomState([self._seed & 0xFFFFFFFF, self._rank, number]).permutation(rows)
        for begin in range(0, rows, self.batch_size):
            chosen = order[begin : begin + self.batch_size] if self._shuffle else slice(begin, begin + self.batch_size)
            yield {name: values[chosen] for name, values in self._kept.items()}


class _Number:
    """A function that can be pickled."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self) -> int:
        return self._number


def transformed(batch: Batch, function: Any, edited: Sequence[Any] | None, removed: Sequence[str] | None) -> Batch:
    """What a transformation_fn of a pandas.DataFrame makes of a batch. Raises ValueError for something else than a
    DataFrame, and for columns whose rows differ in their shapes."""
    import pandas as pd

    frame = pd.DataFrame({name: list(values) if values.ndim > 1 else values for name, values in batch.items()})
    made = function(frame)
    if not isinstance(made, pd.DataFrame):
        raise ValueError(f"transformation_fn returned a {type(made).__name__}, accepted is a pandas.DataFrame")
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
