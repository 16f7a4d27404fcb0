"""Row groups of Parquet that are too large to be held: read in pieces, one after the other. Needs pyarrow."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from horovod.data.source import place_here

_BUFFERS = 32 << 20
"""Bytes of the file that are read ahead, all columns together."""
LEAST_BUFFER = 64 << 10
"""Of one column: for who wants its first rows."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_OBJECT = 64
"""Bytes of a Python object of a text, beside the text."""


def leaves(schema: Any, columns: Sequence[str]) -> list[int]:
    """The numbers, within a row group, of what the columns consist of. ``schema``: a ``pyarrow.parquet.
    ParquetSchema``."""
    paths = [schema.column(index).path for index in range(len(schema))]
    return [i for i, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in columns)]


def array_bytes(about: Any, leaves: Sequence[int]) -> int:
    """About so many bytes will the columns of a row group be as arrays. ``about``: a ``pyarrow.parquet.
    RowGroupMetaData``. Its own figures are of encoded bytes, which may be fewer by far."""
    total = 0
    for index in leaves:
        chunk = about.column(index)
        width = _WIDTHS.get(chunk.physical_type)
        encoded: int = chunk.total_uncompressed_size
        plain = chunk.num_values * (width or (_OBJECT if chunk.physical_type == "BYTE_ARRAY" else 0))
        total += max(encoded, plain) if width else encoded + plain
    return total


class Checked:
    """The row groups of a file, of which pyarrow may be asked for figures.

    Asked for those of a damaged row group or column, pyarrow ends the process: it does not catch what its C++ part
    throws. Where it reads a row group it does. So each is read first, out of a file in which nothing can be read.
    """

    def __init__(self, metadata: Any, size: int, columns: Sequence[str]) -> None:
        from pyarrow import parquet

        self._metadata, self._columns = metadata, list(columns)
        self._file = parquet.ParquetFile(_Unreadable(size), metadata=metadata, pre_buffer=False, buffer_size=1)

    def __iter__(self) -> Iterator[Any]:
        """Yield a ``pyarrow.parquet.RowGroupMetaData`` for each. Raises what pyarrow raises for one that is damaged."""
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


def cut(rows: int, size: int, most: int) -> list[tuple[int, int]]:
    """The first row of each piece, and the one after its last, so that pieces have about ``most`` bytes of ``size`` at
    most, all but the last one equally many rows. Pure."""
    step = max(1, -(-rows // max(1, -(-size // most))))
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)] or [(0, 0)]


def buffer_bytes(columns: int) -> int:
    """Of a file that is read piece by piece, for each column; without them pyarrow reads a row group's columns whole,
    as they are in the file."""
    return max(LEAST_BUFFER, min(4 << 20, _BUFFERS // max(1, columns)))


@contextlib.contextmanager
def told(path: str, trouble: str = "is torn, or no Parquet file") -> Iterator[None]:
    """What pyarrow raises meanwhile becomes a ValueError that names the file, but for lack of memory and what somebody
    has cancelled."""
    import pyarrow

    try:
        yield
    except (MemoryError, pyarrow.ArrowCancelled):  # ArrowMemoryError is the former; neither tells of the file
        raise
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} {trouble}: {error}{place_here()}") from error


class Reading:
    """A row group that is being read from its beginning on. Rows that are passed over are decoded all the same, as
    Parquet has no other way to what comes after them, and dropped."""

    def __init__(self, open_file: Callable[[], Any], path: str, group: int, columns: Sequence[str], step: int) -> None:
        """``open_file``: returns a context of a ``pyarrow.parquet.ParquetFile`` and its size. ``step``: rows that are
        decoded at once. Raises what ``open_file`` does."""
        self._path, self.row = path, 0
        self._rest: Any = None
        self._open = contextlib.ExitStack()
        file, _ = self._open.enter_context(open_file())
        # Without threads: they would stay, and each rank has its own core.
        self._batches = file.iter_batches(step, row_groups=[group], columns=list(columns), use_threads=False)

    def close(self) -> None:
        self._open.close()

    def rows(self, begin: int, end: int) -> Any:
        """A ``pyarrow.Table`` of the rows from ``begin``, which is not before the end of what was read last, up to
        before ``end``; fewer where the row group ends. Raises ValueError for a file that is torn."""
        import pyarrow as pa

        parts = []
        with told(self._path):
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
