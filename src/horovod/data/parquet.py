"""Source of Parquet rows, in blocks of row groups. Requires pyarrow and NumPy (``horovod[data]``)."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from horovod.data.row_groups import Checked, Reading, array_bytes, buffer_bytes, cut, leaves, naming_file
from horovod.data.source import Paths, Source, check_count, find_files, rank_suffix

_ARENA_BYTES = 128 << 10


class ParquetFiles(Source):
    """Source of rows of Parquet files. A batch maps each column to a NumPy array with one row per record.

    Numbers, booleans and times keep their types. Lists become additional dimensions if they have a fixed size, even
    when nested, or if ``shapes`` contains their shape. Other lists, strings and bytes become arrays of objects.
    """

    digest_of = "the files' names, sizes and order, and of how many records each block has, by columns and block_bytes"

    def __init__(
        self,
        paths: Paths,
        columns: Sequence[str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        filesystem: Any = None,
        block_bytes: int = 64 << 20,
    ) -> None:
        """Read the metadata of all files.

        Args:
            paths: A file, a directory (its ``*.parquet`` files), a pattern with ``*``, a numbered range of names, or
                several of these.
            columns: Names of the columns to read. Default: all columns.
            shapes: Shape of the list in each row, by column, such as ``{"image": (28, 28)}``.
            filesystem: A ``pyarrow.fs`` file system that contains the paths.
            block_bytes: Maximum size of a block in bytes, as arrays in memory. A block is a row group, or part of a row
                group if the row group is larger. Parts of a row group are visited in order. To start in the middle of a
                row group, the previous rows must be decoded.

        Raises:
            ValueError: If a file is missing, is damaged or does not have the columns of the first file, if a column is
                missing, or if ``block_bytes`` is not an integer of at least 1.
        """
        check_count("block_bytes", block_bytes, 1)
        self._filesystem = filesystem
        self._files = find_files(paths, ".parquet") if filesystem is None else _named(paths)
        self._shapes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
        self._columns: list[str] = []
        # For each block: index of the file, row group, first row, and True if the block is the whole row group.
        self._blocks: list[tuple[int, int, int, bool]] = []
        self._sizes: list[int] = []
        self.lengths: list[int] = []
        self.chains: list[int] = []
        types: dict[str, Any] = {}
        for number, path in enumerate(self._files):
            with opened(path, filesystem) as (file, size):
                found = {field.name: field.type for field in file.schema_arrow}
                if number == 0:
                    self._columns = _chosen(columns, self._shapes, list(found), path)
                    types = {name: found[name] for name in self._columns}
                _compare(types, found, self._files[0], path)
                self._sizes.append(size)
                parts = leaves(file.schema, self._columns)
                for group, about in enumerate(Checked(file.metadata, size, self._columns)):
                    pieces = cut(about.num_rows, array_bytes(about, parts), block_bytes)
                    self._blocks += [(number, group, begin, len(pieces) == 1) for begin, _ in pieces]
                    self.lengths += [end - begin for begin, end in pieces]
                    self.chains.append(len(pieces))

    def made_of(self) -> list[tuple[str, int]]:
        return list(zip(self._files, self._sizes, strict=True))

    def load(self, block: int) -> dict[str, Any]:
        number, group, _, whole = self._blocks[block]
        if not whole:
            with self.walk() as load:
                return load(block)
        path = self._files[number]
        with opened(path, self._filesystem, self._sizes[number]) as (file, _):
            # Do not use threads, because they would stay alive, and a rank usually has only one core.
            table = file.read_row_group(group, columns=self._columns, use_threads=False)
        return self._arrays(block, table, f"{path}, row group {group}")

    @contextlib.contextmanager
    def walk(self) -> Iterator[Callable[[int], dict[str, Any]]]:
        """Return a context manager that keeps a row group open for reading in parts."""
        reading: Reading | None = None
        place = (-1, -1)

        def load(block: int) -> dict[str, Any]:
            nonlocal reading, place
            number, group, begin, whole = self._blocks[block]
            if whole:
                return self.load(block)
            path, rows = self._files[number], self.lengths[block]
            if reading is None or place != (number, group) or reading.row > begin:
                if reading is not None:
                    reading.close()
                buffers = buffer_bytes(len(self._columns))
                opening = partial(opened, path, self._filesystem, self._sizes[number], buffers)
                reading, place = Reading(opening, path, group, self._columns, rows), (number, group)
            table = reading.rows(begin, begin + rows)
            return self._arrays(block, table, f"{path}, row group {group} from its row {begin} on")

        try:
            yield load
        finally:
            if reading is not None:
                reading.close()

    def _arrays(self, block: int, table: Any, where: str) -> dict[str, Any]:
        there = 0 if table is None else table.num_rows
        if there != self.lengths[block]:
            had = f"had {self.lengths[block]} rows when the source was created"
            raise ValueError(f"{where} {had}, but has {there} now{rank_suffix()}")
        return {name: self.array(name, table.column(name), f"{where}, column {name}") for name in self._columns}

    def array(self, name: str, column: Any, where: str) -> Any:
        """Convert a column of a row group to an array.

        Override this for columns that contain values other than numbers and lists of numbers.

        Args:
            name: Name of the column.
            column: A ``pyarrow.ChunkedArray``.
            where: Location of the column, for error messages.

        Returns:
            The array, with one row for each row of the column.
        """
        return _array(column, self._shapes.get(name), where)

    def take(self, loaded: dict[str, Any], places: Sequence[int]) -> dict[str, Any]:
        import numpy as np

        indices = np.asarray(places, np.intp)
        return {name: values[indices] for name, values in loaded.items()}

    def join(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        import numpy as np

        return (
            rows[0] if len(rows) == 1 else {name: np.concatenate([one[name] for one in rows]) for name in self._columns}
        )

    def gather(self, chosen: Sequence[tuple[dict[str, Any], Sequence[int]]]) -> dict[str, Any]:
        import numpy as np

        if not chosen:
            return self.join([])
        indices = [np.asarray(places, np.intp) for _, places in chosen]
        ends = np.cumsum([0, *map(len, indices)])
        columns = {}
        for name in self._columns:
            parts = [loaded[name] for loaded, _ in chosen]
            values = _new_array((int(ends[-1]), *parts[0].shape[1:]), np.result_type(*{part.dtype for part in parts}))
            for part, places, begin, end in zip(parts, indices, ends[:-1], ends[1:], strict=True):
                # All positions are valid indices. The mode "clip" avoids a copy that the default mode makes.
                np.take(part, places, axis=0, out=values[begin:end], mode="clip")
            columns[name] = values
        return columns


@contextlib.contextmanager
def opened(path: str, filesystem: Any, size: int | None = None, buffers: int = 0) -> Iterator[tuple[Any, int]]:
    """Open a file, and yield it with its size in bytes.

    Converts pyarrow's errors within the ``with`` block to ValueErrors naming the file, except for MemoryError and
    cancellation.

    Args:
        path: Path of the file.
        filesystem: A ``pyarrow.fs`` file system, or None.
        size: Size that the file must have, or None if unknown.
        buffers: Buffer size per column in bytes, for reading row groups in pieces. 0 reads them as a whole.

    Yields:
        The ``pyarrow.parquet.ParquetFile`` and the size in bytes.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If the file cannot be read or has another size.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'horovod[data]'") from error
    with naming_file(path, "cannot be read"):
        raw = pyarrow.OSFile(path) if filesystem is None else filesystem.open_input_file(path)
    with raw, naming_file(path):
        now = raw.size()
        if size not in (None, now):
            raise ValueError(f"{path} had {size} bytes when the source was created, but has {now} now{rank_suffix()}")
        yield parquet.ParquetFile(raw, pre_buffer=False, buffer_size=buffers, page_checksum_verification=True), now


def _new_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialized NumPy array.

    Large arrays use Arrow's allocator, which can reuse memory that another thread has freed. malloc would return such
    memory to the system immediately, which later costs a page fault for every page.
    """
    import numpy as np
    import pyarrow as pa

    size = math.prod(shape) * dtype.itemsize
    if size < _ARENA_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    return np.frombuffer(pa.allocate_buffer(size), dtype).reshape(shape)


def _named(paths: Paths) -> list[str]:
    """Return the paths as a list, without expanding patterns, because a remote file system is used."""
    found = [os.fspath(one) for one in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"paths must name at least one file, and each once, got {paths!r}{rank_suffix()}")
    return found


def _chosen(columns: Sequence[str] | None, shapes: Mapping[str, Any], there: list[str], path: str) -> list[str]:
    wanted = there if columns is None else list(columns)
    for argument, names in (("columns", wanted), ("shapes", list(shapes))):
        if lost := [name for name in names if name not in there]:
            raise ValueError(f"{argument} must name columns of {path}, {there}, got {lost}{rank_suffix()}")
    return wanted


def _compare(types: Mapping[str, Any], found: Mapping[str, Any], first: str, path: str) -> None:
    for name, kind in types.items():
        if found.get(name) != kind:
            has = found.get(name, "no such column")
            raise ValueError(f"column {name} must be {kind} in {path}, as in {first}, got {has}{rank_suffix()}")


def _array(column: Any, shape: tuple[int, ...] | None, where: str) -> Any:
    """Convert a column of a row group to an array.

    Returns:
        The array, with one row for each row of the column.

    Raises:
        ValueError: If a column of integers or booleans has missing values (its dtype would then depend on the data), or
            if a list does not have the given shape.
    """
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if column.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise ValueError(
            f"{where} ({kind}) must not have missing values, got {column.null_count} of them{rank_suffix()}"
        )
    if shape is None and not pa.types.is_fixed_size_list(kind):
        return column.to_numpy()
    if column.null_count:
        raise ValueError(
            f"{where} must not have missing lists, got {column.null_count} of {len(column)}{rank_suffix()}"
        )
    sizes = _sizes(kind)
    if shape is None:
        shape = tuple(size for size in sizes if size is not None)
    # Nested lists must match the shape at each depth. A flat list's length must be the product of the shape.
    flat = [_flat(chunk, shape if len(shape) == len(sizes) else (), where) for chunk in column.chunks]
    values = flat[0][0] if len(flat) == 1 else np.concatenate([one for one, _ in flat]) if flat else np.empty(0)
    numbers = np.concatenate([each for _, each in flat]) if flat else np.empty(0, np.int64)
    if len(wrong := np.flatnonzero(numbers != math.prod(shape))):
        raise ValueError(
            f"{where} must have shape {shape} in each row, got {numbers[wrong[0]]} numbers in row {wrong[0]}"
            f"{rank_suffix()}"
        )
    return values.reshape(len(column), *shape)


def _sizes(kind: Any) -> list[int | None]:
    """Return the size of the lists at each nesting depth, or None at depths where it varies."""
    import pyarrow as pa

    sizes: list[int | None] = []
    while pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return sizes


def _flat(chunk: Any, shape: tuple[int, ...], where: str) -> tuple[Any, Any]:
    """Flatten the lists of a chunk, which can be nested.

    ``shape`` is the required list length at each depth. An empty shape accepts any length.

    Returns:
        The numbers, and the count of numbers for each row.

    Raises:
        ValueError: If a list is missing or has another length.
    """
    import numpy as np
    import pyarrow as pa

    # Row offsets into the flattened values. The final entry is the end of the last row.
    ends = np.arange(len(chunk) + 1)
    for depth, size in enumerate(_sizes(chunk.type)):
        if chunk.null_count:
            raise ValueError(f"{where} must not have missing inner lists, got {chunk.null_count}{rank_suffix()}")
        # The offsets of a sliced chunk do not begin at 0.
        offsets = np.arange(len(chunk) + 1) * size if size is not None else chunk.offsets.to_numpy()
        lengths = np.diff(offsets)
        if shape and len(wrong := np.flatnonzero(lengths != shape[depth])):
            row = int(np.searchsorted(ends, wrong[0], side="right")) - 1
            raise ValueError(
                f"{where} must have shape {shape} in each row, got a list of {lengths[wrong[0]]} in row {row}"
                f"{rank_suffix()}"
            )
        ends = offsets[ends] - offsets[0]
        chunk = chunk.flatten()
    return _array(pa.chunked_array([chunk]), None, where), np.diff(ends)
