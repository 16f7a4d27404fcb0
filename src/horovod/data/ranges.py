"""Base class of sources whose blocks are byte ranges of files."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from horovod.data import paths as files
from horovod.data.source import Source, check_count, place_here

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Range:
    """Byte range of a file, and the number of records in it."""

    begin: int
    end: int
    records: int


class ByteRanges(Source):
    """Source of records in byte ranges.

    A subclass finds the ranges of a file (``index``) and parses one (``parse``).
    """

    digest_of = "the files' names, sizes and order, and of how many records each block has, by block_bytes"
    SUFFIX = ""
    TORN: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions that ``parse`` raises for invalid data."""

    def __init__(self, paths: files.Paths, block_bytes: int = 8 * MEGABYTE) -> None:
        """Index the records of all files.

        Args:
            paths: A file, a directory, a pattern with ``*``, a numbered range of names such as
                ``shard-{000..127}.tar``, or several of these.
            block_bytes: Approximate number of bytes that are read and held at once.

        Raises:
            ValueError: If a file is missing, unreadable, damaged or compressed; names it.
        """
        self._files: list[tuple[str, int]] = []  # with their sizes
        self._blocks: list[tuple[int, Range]] = []  # with the number of the file
        check_count("block_bytes", block_bytes, 1)
        for number, path in enumerate(files.find(paths, self.SUFFIX)):
            with files.readable(path):
                files.refuse_packed(path)
                size = files.size_of(path)
                self._files.append((path, size))
                self._blocks += [(number, one) for one in self.index(path, size, block_bytes)]
        self.lengths = [one.records for _, one in self._blocks]

    @staticmethod
    @abstractmethod
    def index(path: str, size: int, block_bytes: int) -> Iterator[Range]:
        """Yield the ranges of a file of ``size`` bytes. Raises ValueError naming it if it is damaged."""

    @staticmethod
    @abstractmethod
    def parse(data: bytes) -> list[Any]:
        """Return the records in the bytes of a range."""

    def made_of(self) -> list[tuple[str, int]]:
        return self._files

    def load(self, block: int) -> list[Any]:
        number, one = self._blocks[block]
        path, size = self._files[number]
        data = files.read(path, size, one.begin, one.end)
        try:
            records = self.parse(data)
        except self.TORN as error:
            raise ValueError(f"{path} is damaged in bytes {one.begin} to {one.end}: {error}{place_here()}") from error
        if len(records) != one.records:
            raise ValueError(
                f"{path} had {one.records} records in bytes {one.begin} to {one.end} when the source was created, but "
                f"has {len(records)} now{place_here()}"
            )
        return records
