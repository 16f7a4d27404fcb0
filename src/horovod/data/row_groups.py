"""Reader of Parquet row groups, which reads them in pieces if they are too large for memory. Requires pyarrow."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from horovod.data.source import rank_suffix

_BUFFERS = 32 << 20
"""Bytes of the file that are read ahead, in total for all columns."""
MIN_BUFFER = 64 << 10
"""Minimum buffer size per column, in bytes. Used by callers that only need the first rows."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_OBJECT = 64
"""Assumed overhead of a Python string object, in bytes."""


def leaves(schema: Any, columns: Sequence[str]) -> list[int]:
    """Return the indices of the physical columns in a row group that belong to the given columns.

    ``schema`` is a ``pyarrow.parquet.ParquetSchema``.
    """
    paths = [schema.column(index).path for index in range(len(schema))]
    return [i for i, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in columns)]


def array_bytes(about: Any, leaves: Sequence[int]) -> int:
    """Estimate the in-memory size in bytes of a row group's columns.

    The file records only the encoded size, which can be far smaller. ``about`` is a
    ``pyarrow.parquet.RowGroupMetaData``.

    Returns:
        The estimated number of bytes.
    """
    total = 0
    for index in leaves:
        chunk = about.column(index)
        width = _WIDTHS.get(chunk.physical_type)
        encoded: int = chunk.total_uncompressed_size
        plain = chunk.num_values * (width or (_OBJECT if chunk.physical_type == "BYTE_ARRAY" else 0))
        total += max(encoded, plain) if width else encoded + plain
    return total


class Checked:
    """Iterable over a file's row groups that validates their metadata before use.

    If the metadata of a row group or column is damaged, accessing it ends the process, because pyarrow does not catch a
    C++ exception there. pyarrow does catch the exception when it reads a row group. So the iterable first reads each
    row group from a dummy file without data.
    """

    def __init__(self, metadata: Any, size: int, columns: Sequence[str]) -> None:
        from pyarrow import parquet

        self._metadata, self._columns = metadata, list(columns)
        self._file = parquet.ParquetFile(_Unreadable(size), metadata=metadata, pre_buffer=False, buffer_size=1)

    def __iter__(self) -> Iterator[Any]:
        """Yield the ``pyarrow.parquet.RowGroupMetaData`` of each row group.

        Raises pyarrow's error if a row group is damaged.
        """
        for group in range(self._metadata.num_row_groups):
            with contextlib.suppress(_NothingReadError):
                self._file.read_row_group(group, columns=self._columns, use_threads=False)
            yield self._metadata.row_group(group)


class _NothingReadError(OSError):
    pass


class _Unreadable(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self._size = self._place = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        raise _NothingReadError


def cut(rows: int, size: int, max_bytes: int) -> list[tuple[int, int]]:
    """Split ``rows`` rows, ``size`` bytes in total, into pieces of at most about ``max_bytes`` bytes.

    All pieces except the last one have the same number of rows.

    Returns:
        First row and end row of each piece.
    """
    step = max(1, -(-rows // max(1, -(-size // max_bytes))))
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)] or [(0, 0)]


def buffer_bytes(columns: int) -> int:
    """Return the buffer size per column, in bytes, for a file that is read in pieces.

    Without buffers, pyarrow would read each encoded column of a row group whole.
    """
    return max(MIN_BUFFER, min(4 << 20, _BUFFERS // max(1, columns)))


@contextlib.contextmanager
def naming_file(path: str, trouble: str = "is damaged, or not a Parquet file") -> Iterator[None]:
    """Convert pyarrow's errors, except MemoryError and cancellation, to ValueErrors that name the file."""
    import pyarrow

    try:
        yield
    except (MemoryError, pyarrow.ArrowCancelled):  # let memory errors propagate, including pyarrow.ArrowMemoryError
        raise
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} {trouble}: {error}{rank_suffix()}") from error


class Reading:
    """Sequential reader of the rows of one row group.

    Skipped rows must be decoded and dropped, because Parquet does not support seeking to a row.
    """

    def __init__(self, open_file: Callable[[], Any], path: str, group: int, columns: Sequence[str], step: int) -> None:
        """Open the file and start reading a row group.

        Args:
            open_file: Function that returns a context manager, which yields a ``pyarrow.parquet.ParquetFile`` and its
                size. Errors raised by the function propagate.
            path: Path of the file, for error messages.
            group: Number of the row group.
            columns: Names of the columns.
            step: Number of rows to decode at once.
        """
        self._path, self.row = path, 0
        self._rest: Any = None
        self._open = contextlib.ExitStack()
        file, _ = self._open.enter_context(open_file())
        # Do not use threads. They would stay alive, and a rank usually has only one core.
        self._batches = file.iter_batches(step, row_groups=[group], columns=list(columns), use_threads=False)

    def close(self) -> None:
        self._open.close()

    def rows(self, begin: int, end: int) -> Any:
        """Return rows ``begin`` to ``end`` (exclusive) as a ``pyarrow.Table``, or fewer at the end of the group.

        ``begin`` must not be less than the previous call's ``end``. Raises ValueError if the file is damaged.
        """
        import pyarrow as pa

        parts = []
        with naming_file(self._path):
            while self.row < end:
                batch = self._rest if self._rest is not None else next(self._batches, None)
                if batch is None:
                    break
                stop = min(end, self.row + batch.num_rows) - self.row
                if begin < self.row + stop:
                    parts.append(batch.slice(max(0, begin - self.row), stop - max(0, begin - self.row)))
                self._rest = batch.slice(stop) if stop < batch.num_rows else None
                self.row += stop
        return pa.Table.from_batches(parts) if parts else None
