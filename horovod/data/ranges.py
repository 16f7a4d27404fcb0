"""Sources whose blocks are ranges of bytes of files."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from horovod.data import paths as files
from horovod.data.source import Source, check_count, place_here

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Range:
    """So many records in these bytes of a file."""

    begin: int
    end: int
    records: int


class ByteRanges(Source):
    """A subclass finds ranges in a file (``index``), and the records in the bytes of one (``parse``)."""

    digest_of = "the files' names, sizes and order, and of how many records each block has, by block_bytes"
    SUFFIX = ""
    TORN: ClassVar[tuple[type[Exception], ...]] = ()
    """What ``parse`` raises for bytes in which it finds no records."""

    def __init__(self, paths: files.Paths, block_bytes: int = 8 * MEGABYTE) -> None:
        """``paths``: a file; a folder; a pattern with ``*``; a row of names, ``shard-{000..127}.tar``; or several of
        these. ``block_bytes``: about how much is read and held at once. Each file is looked through now.

        Raises ValueError naming files that are not there, not to be read, torn or compressed.
        """
        self._files: list[tuple[str, int]] = []  # with their sizes
        self._blocks: list[tuple[int, Range]] = []  # number of the file
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
        """The ranges of a file of ``size`` bytes. Raises ValueError naming it when it is torn."""

    @staticmethod
    @abstractmethod
    def parse(data: bytes) -> list[Any]:
        """The records of a range."""

    def made_of(self) -> list[tuple[str, int]]:
        return self._files

    def load(self, block: int) -> list[Any]:
        number, one = self._blocks[block]
        path, size = self._files[number]
        data = files.read(path, size, one.begin, one.end)
        try:
            records = self.parse(data)
        except self.TORN as error:
            raise ValueError(f"{path} is torn in bytes {one.begin} to {one.end}: {error}{place_here()}") from error
        if len(records) != one.records:
            raise ValueError(
                f"{path} had {one.records} records in bytes {one.begin} to {one.end} when the source was made, and has "
                f"{len(records)} now{place_here()}"
            )
        return records
