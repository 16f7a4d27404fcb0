"""Writer that stores a partition of a DataFrame in Parquet files. It runs in a Spark task, without pyspark.

In columns listed in an argument of the estimator, all arrays and vectors have the same size. They are stored as binary
values of fixed size, because Parquet's lists are four times slower to read. The field's metadata contains dtype and
shape. In other columns, arrays can have any size and are stored as lists.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from horovod.spark.common.columns import Column, ColumnStatistics
from horovod.spark.common.file_store import AbstractFilesystemStore

IS_VALIDATION = "__horovod_validation"
"""Boolean column that is true in rows to validate with."""
DTYPE, SHAPE = "horovod.dtype", "horovod.shape"
GROUP_BYTES = 4 << 20
"""Size of a row group as arrays, which a rank reads at once."""
REPORT = "path string, validation boolean, rows long, found string"
"""Schema of a task's result, which has a row for each file."""


class _Dropped(Exception):
    """Exception that is raised inside ``new_file`` to discard the unfinished file."""


class _File:
    """Parquet file to which rows are appended. A row group is written whenever enough rows have been collected."""

    def __init__(self, store: AbstractFilesystemStore, path: str, columns: Sequence[Column]) -> None:
        self._store, self.path, self._columns = store, path, columns
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0
        self._writer: Any = None
        self._name: Any = None
        self.statistics = {column.name: ColumnStatistics() for column in columns}
        self._refused = False  # True if rows are invalid. They are not written, because the driver will reject them.

    def add(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        for column in self._columns:
            self.statistics[column.name].add(look(batch.column(column.name), column))
        self._rows += batch.num_rows
        self._refused = self._refused or not all(
            self.statistics[column.name].even for column in self._columns if column.named
        )
        if self._refused:
            self._waiting = []
            return
        self._waiting.append(batch)
        self._bytes += self._dense_bytes(batch)
        if self._bytes >= GROUP_BYTES:
            self._write()

    def _dense_bytes(self, batch: Any) -> int:
        """Return how many bytes a rank will need for the rows of this batch as dense arrays."""
        import numpy as np

        total = 0
        for column in self._columns:
            seen = self.statistics[column.name].most
            if column.kind == "sparse":
                total += batch.num_rows * (seen[0] if seen else 0) * np.dtype(column.dtype).itemsize
            else:
                total += batch.column(column.name).nbytes
        return total

    def _write(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        table = packed(pa.Table.from_batches(self._waiting), self._columns)
        if self._writer is None:
            texts = [column.name for column in self._columns if column.kind == "other"]
            self._name = self._store.new_file(self.path)
            # Use dictionary encoding only for text. Most numbers occur only once, so encoding them would cost time
            # without saving space.
            self._writer = parquet.ParquetWriter(
                self._name.__enter__(),
                table.schema,
                compression="lz4",
                use_dictionary=texts,
                write_page_checksum=True,
            )
        groups = max(1, round(self._bytes / GROUP_BYTES))
        self._writer.write_table(table, row_group_size=-(-table.num_rows // groups))
        self._waiting, self._bytes = [], 0

    def close(self, error: BaseException | None = None) -> None:
        """Close the file, or discard it if there was an error."""
        if error is None and self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.close()
            dropped = _Dropped() if error is not None else None
            self._name.__exit__(type(dropped) if dropped else None, dropped, None)

    def report(self, validation: bool) -> dict[str, Any]:
        found = json.dumps({name: asdict(one) for name, one in self.statistics.items()})
        return {"path": self.path, "validation": validation, "rows": self._rows, "found": found}


def packed(table: Any, columns: Sequence[Column]) -> Any:
    """Convert lists to binary values of fixed size, in all columns listed in an argument of the estimator."""
    import numpy as np
    import pyarrow as pa

    for place, column in enumerate(columns):
        if column.kind not in ("list", "vector") or not column.named:
            continue
        array, shape = table.column(place).combine_chunks(), []
        array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
        rows = count = len(array)
        for _ in range(column.depth):
            array = array.flatten()
            shape.append(len(array) // max(1, count))
            count = len(array)
        values = np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).astype(column.dtype, copy=False)
        kind = pa.binary(values.nbytes // max(1, rows))
        about = {DTYPE: column.dtype, SHAPE: ",".join(map(str, shape))}
        made = pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, pa.py_buffer(values)])
        table = table.set_column(place, pa.field(column.name, kind, False, about), made)
    return table


def unpacked_field(field: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the dtype and shape of the arrays in a field of binary values, or None if the field stores no arrays."""
    about = field.metadata or {}
    if DTYPE.encode() not in about:
        return None
    return about[DTYPE.encode()].decode(), tuple(map(int, about[SHAPE.encode()].decode().split(",")))


def unpacked(chunks: Sequence[Any], dtype: str, shape: Sequence[int]) -> Any:
    """Convert a column of binary values back to an array with the given dtype and the given shape per row."""
    import numpy as np

    parts = []
    for chunk in chunks:
        size = chunk.type.byte_width
        data = memoryview(chunk.buffers()[1])[chunk.offset * size : (chunk.offset + len(chunk)) * size]
        parts.append(np.frombuffer(data, dtype).reshape(len(chunk), *shape))
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty((0, *shape), dtype)


def write_part(
    batches: Iterator[Any], store: AbstractFilesystemStore, folders: Sequence[str], columns: Sequence[Column], part: int
) -> Iterator[Any]:
    """Write a partition to a file for training and, if there are two folders, to a file for validation.

    Each attempt of a task uses different file names, so files of abandoned attempts are harmless.

    Args:
        batches: Batches (``pyarrow.RecordBatch``) whose columns are in the order of ``columns``. With two folders, a
            column IS_VALIDATION follows.
        store: Store to write to.
        folders: Folder of the training data, and optionally the folder of the validation data.
        columns: Columns to write.
        part: Number of the partition.

    Yields:
        A single batch with schema ``REPORT``, which contains a row for each file.
    """
    import pyarrow as pa

    attempt = secrets.token_hex(4)
    files = [_File(store, f"{folder}/part-{part:05d}-{attempt}.parquet", columns) for folder in folders]
    names = [column.name for column in columns]
    error: BaseException | None = None
    try:
        for batch in batches:
            batch = pa.RecordBatch.from_arrays(batch.columns, [*names, *([IS_VALIDATION] if len(files) > 1 else [])])
            if len(files) == 1:
                files[0].add(batch.select(names))
                continue
            chosen = batch.column(IS_VALIDATION)
            for file, mask in ((files[0], _not(chosen)), (files[1], chosen)):
                kept = batch.filter(mask).select(names)
                if kept.num_rows:
                    file.add(kept)
    except BaseException as raised:
        error = raised
        raise
    finally:
        for file in files:
            file.close(error)
    rows = [file.report(bool(number)) for number, file in enumerate(files) if file._rows]
    schema = pa.schema(
        [("path", pa.string()), ("validation", pa.bool_()), ("rows", pa.int64()), ("found", pa.string())]
    )
    yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _not(mask: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(mask)


def look(array: Any, column: Column) -> ColumnStatistics:
    """Return the statistics of a column from a ``pyarrow.Array``."""
    import pyarrow.compute as pc

    found = ColumnStatistics(len(array), array.null_count)
    if column.kind in ("number", "other"):
        return found
    if len(array) == array.null_count:
        return found
    found.least, found.most = [], []
    if column.kind == "sparse":
        sizes = pc.min_max(array.field("size")).as_py()
        found.least.append(sizes["min"] or 0)
        found.most.append(sizes["max"] or 0)
        return found
    for _ in range(column.depth):
        sizes = pc.min_max(pc.list_value_length(array)).as_py()
        found.least.append(sizes["min"] or 0)
        found.most.append(sizes["max"] or 0)
        array = array.flatten()
        found.inner_nulls += array.null_count
    return found
