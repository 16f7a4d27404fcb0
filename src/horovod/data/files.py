"""Sources that read the bytes of files: ``LineFiles``, ``WholeFiles``, and a base class for records in byte ranges."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from horovod.data.source import (
    Paths,
    Source,
    check_count,
    check_not_compressed,
    find_files,
    rank_suffix,
    read_bytes,
    readable,
    size_of,
)

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Range:
    """Byte range of a file, with the number of records in it."""

    begin: int
    end: int
    records: int


class ByteRanges(Source):
    """Base class of sources whose blocks are byte ranges of files.

    A subclass finds the ranges of a file (``index``) and parses the bytes of a range (``parse``).
    """

    digest_of = "the files' names, sizes and order, and of how many records each block has, by block_bytes"
    SUFFIX = ""
    TORN: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions that ``parse`` raises for invalid data."""

    def __init__(self, paths: Paths, block_bytes: int = 8 * MEGABYTE) -> None:
        """Index the records of all files.

        Args:
            paths: A file, a directory, a pattern with ``*``, a numbered range of names such as
                ``shard-{000..127}.tar``, or several of these.
            block_bytes: Approximate size of a block in bytes. A block is read as a whole and kept in memory.

        Raises:
            ValueError: If a file is missing, unreadable, damaged or compressed. The message names the file.
        """
        # Path and size in bytes of each file of the source.
        self._files: list[tuple[str, int]] = []
        # Index of the file in `_files`, and byte range, of each block.
        self._blocks: list[tuple[int, Range]] = []
        check_count("block_bytes", block_bytes, 1)
        for number, path in enumerate(find_files(paths, self.SUFFIX)):
            with readable(path):
                check_not_compressed(path)
                size = size_of(path)
                self._files.append((path, size))
                self._blocks += [(number, one) for one in self.index(path, size, block_bytes)]
        self.lengths = [one.records for _, one in self._blocks]

    @staticmethod
    @abstractmethod
    def index(path: str, size: int, block_bytes: int) -> Iterator[Range]:
        """Yield the ranges of a file of ``size`` bytes. If it is damaged, raise ValueError with the file's name."""

    @staticmethod
    @abstractmethod
    def parse(data: bytes) -> list[Any]:
        """Parse the bytes of a range and return its records."""

    def made_of(self) -> list[tuple[str, int]]:
        return self._files

    def load(self, block: int) -> list[Any]:
        number, one = self._blocks[block]
        path, size = self._files[number]
        data = read_bytes(path, size, one.begin, one.end)
        try:
            records = self.parse(data)
        except self.TORN as error:
            raise ValueError(f"{path} is damaged in bytes {one.begin} to {one.end}: {error}{rank_suffix()}") from error
        if len(records) != one.records:
            raise ValueError(
                f"{path} had {one.records} records in bytes {one.begin} to {one.end} when the source was created, but "
                f"has {len(records)} now{rank_suffix()}"
            )
        return records


class LineFiles(ByteRanges):
    r"""Source whose records are the lines of files, as ``bytes`` without the line end (``\n`` or ``\r\n``).

    Use it for text, JSON lines, and CSV without a header.
    """

    @staticmethod
    def index(path: str, size: int, block_bytes: int) -> Iterator[Range]:
        with open(path, "rb") as file:
            begin = 0
            while data := file.read(block_bytes):
                if not data.endswith(b"\n"):
                    data += file.readline()
                end = begin + len(data)
                yield Range(begin, end, data.count(b"\n") + (not data.endswith(b"\n")))
                begin = end

    @staticmethod
    def parse(data: bytes) -> list[bytes]:
        lines = data.split(b"\n")
        if data.endswith(b"\n"):
            lines.pop()
        return [line.removesuffix(b"\r") for line in lines]


class WholeFiles(Source):
    """Source in which each file is a record ``(path, bytes)``, for example for directories of images."""

    digest_of = "the files' names, sizes and order, and of how many records each block has, by block_files"

    def __init__(self, paths: Paths, block_files: int = 32) -> None:
        """Create the source, and read the sizes of all files.

        Args:
            paths: A file, a directory, a pattern with ``*``, a numbered range of names, or several of these.
            block_files: Number of files per block. A block is read as a whole and kept in memory.

        Raises:
            ValueError: If a file is missing or unreadable. The message names the file.
        """
        check_count("block_files", block_files, 1)
        found = [(path, size_of(path)) for path in find_files(paths)]
        self._blocks = [found[begin : begin + block_files] for begin in range(0, len(found), block_files)]
        self.lengths = [len(block) for block in self._blocks]

    def made_of(self) -> list[tuple[str, int]]:
        return [one for block in self._blocks for one in block]

    def load(self, block: int) -> list[tuple[str, bytes]]:
        return [(path, read_bytes(path, size, 0, size)) for path, size in self._blocks[block]]
