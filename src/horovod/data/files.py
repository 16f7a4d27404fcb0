"""File-based sources: lines, whole files, tar archives, and a base class for byte ranges."""

import io
import itertools
import tarfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator
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
        # Each block's byte range, with the index of its file in `_files`.
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
        """Yield the byte ranges of a file of ``size`` bytes.

        Raises ValueError if the file is damaged. The message names the file.
        """

    @staticmethod
    @abstractmethod
    def parse(data: bytes) -> list[Any]:
        """Parse the bytes of a range into records."""

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
    r"""Source whose records are the lines of files, as ``bytes`` without the line ending (``\n`` or ``\r\n``).

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
    """Source whose records are whole files, as ``(path, bytes)``. Suitable for directories of images, for example."""

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


# TarFiles reads samples from tar archives in WebDataset's format.

_BLOCK = tarfile.BLOCKSIZE
_KEY = "__key__"
# Maximum size in bytes of a header that contains a member's long name or attributes.
_LONGEST_HEADER = 1 << 20
# Maximum size in bytes of a header whose attributes apply to all following members.
_LONGEST_GLOBAL = 1 << 16
# Maximum number of attributes that apply to all following members.
_MAX_GLOBAL = 1000
# Maximum number of headers per member.
_MAX_HEADERS = 16
# Maximum number of consecutive digits in attributes. tarfile would need quadratic time to parse longer numbers.
_MAX_DIGITS = 255
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else ord(" ") for byte in range(256))
# Exceptions that tarfile raises if a header is invalid.
_TORN = (tarfile.TarError, OSError, ValueError, ArithmeticError, LookupError)
_ATTRIBUTES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_HEADERS = (*_ATTRIBUTES, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class _Member(tarfile.TarInfo):
    """Tar header parser that rejects headers on which tarfile would loop forever or exhaust memory."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Member":
        assert isinstance(archive, _Archive)
        assert archive.fileobj is not None
        # Some Python versions call this method for each header of a member. All headers of a member are checked at
        # once.
        if archive.fileobj.tell() >= archive.checked_to:
            archive.checked_to = _check_headers(archive.fileobj)
        try:
            made = super().fromtarfile(archive)
        # Convert the error, because tarfile would treat it as the end of the archive after the first member.
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error
        if made.size < 0:
            raise ValueError(f"a member must have at least 0 bytes, got {made.name} with {made.size}")
        return made


class _Archive(tarfile.TarFile):
    tarinfo = _Member
    checked_to = 0
    """End of the headers that have been checked."""


def _check_headers(file: Any) -> int:
    """Check the next member's headers. The file position is unchanged.

    Returns:
        Offset of the end of the headers.

    Raises:
        ValueError: If there are too many headers, or if a header is too large or takes tarfile too long to parse.
        tarfile.HeaderError: If a header is damaged.
    """
    place = file.tell()
    for _ in range(_MAX_HEADERS):
        block = file.read(_BLOCK)
        if block[156:157] not in _HEADERS:
            break
        head = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        longest = _LONGEST_GLOBAL if head.type == tarfile.XGLTYPE else _LONGEST_HEADER
        if not 0 <= head.size <= longest:
            raise ValueError(f"a header must have at most {longest} bytes, got {head.size}")
        data = file.read(-(-head.size // _BLOCK) * _BLOCK)
        if head.type in _ATTRIBUTES:
            _check_attributes(data[: head.size])
    else:
        raise ValueError(f"a member must have at most {_MAX_HEADERS} headers")
    end: int = file.tell()
    file.seek(place)
    return end


def _check_attributes(data: bytes) -> None:
    """Raise ValueError if tarfile would need quadratic time to parse a header's attributes."""
    if b"0" * (_MAX_DIGITS + 1) in data.translate(_DIGITS):
        raise ValueError(f"an attribute must have at most {_MAX_DIGITS} consecutive digits")
    at = 0
    while at < len(data) and data[at]:
        length = data[at : data.find(b" ", at, at + 9)]
        end = at + int(length) if length.isdigit() else 0
        if not at < data.find(b"=", at, end) < end <= len(data) or data[end - 1 : end] != b"\n":
            raise ValueError(f"an attribute must have the form LENGTH NAME=VALUE, got another at byte {at} of a header")
        at = end


class TarFiles(ByteRanges):
    """Source of records in tar archives. A record consists of consecutive files with the same name up to the first dot.

    ``0017.jpg`` and ``0017.cls`` become ``{"__key__": "0017", "jpg": b"...", "cls": b"..."}``. Archives must not be
    compressed. Members without a dot in their name, and members other than regular files, are skipped.
    """

    SUFFIX = ".tar"
    TORN = _TORN

    @staticmethod
    def index(path: str, size: int, block_bytes: int) -> Iterator[Range]:
        try:
            with _Archive.open(path, "r:") as archive:
                yield from _ranges(_spans(_members(archive)), block_bytes)
                end = archive.offset
        except _TORN as error:
            raise ValueError(f"{path} is damaged, or not a tar archive: {error}{rank_suffix()}") from error
        with open(path, "rb") as file:
            file.seek(end)
            # tarfile accepts archives that end between two members or continue with arbitrary data, so check the end.
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise ValueError(f"{path} is damaged: the archive does not end at byte {end} of {size}{rank_suffix()}")

    @staticmethod
    def parse(data: bytes) -> list[dict[str, Any]]:
        with _Archive.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            return [
                {_KEY: key, **{_split(one.name)[1]: _content(data, one) for one in members}}
                for key, members in itertools.groupby(_members(archive), lambda one: _split(one.name)[0])
            ]


def _content(data: bytes, member: tarfile.TarInfo) -> bytes:
    return data[member.offset_data : member.offset_data + member.size]


def _split(name: str) -> tuple[str, str]:
    """Split a member's name at the first dot. A part can be empty."""
    folder, slash, file = name.rpartition("/")
    stem, _, rest = file.partition(".")
    return (folder + slash + stem, rest) if stem else ("", "")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    place = -1
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # otherwise it would keep all members
        if archive.offset <= place:
            raise tarfile.TarError(f"{member.name} leads back to byte {archive.offset}")
        place = archive.offset
        if len(archive.pax_headers) > _MAX_GLOBAL:
            raise tarfile.TarError(f"more than {_MAX_GLOBAL} attributes of all members")
        if member.issparse():
            raise tarfile.TarError(f"{member.name} is a sparse file")
        if member.isreg() and all(_split(member.name)):
            if _split(member.name)[1] == _KEY:
                raise tarfile.TarError(f"{member.name} would stand in the place of the record's key")
            yield member


def _spans(members: Iterable[tarfile.TarInfo]) -> Iterator[tuple[int, int]]:
    """Yield the byte range of each record of an archive."""
    for key, group in itertools.groupby(members, lambda one: _split(one.name)[0]):
        begin, end, seen = -1, 0, set()
        for member in group:
            if member.name in seen:
                raise tarfile.TarError(f"it has {member.name} twice, one after the other, of the record {key}")
            seen.add(member.name)
            begin = member.offset if begin < 0 else begin
            end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
        yield begin, end


def _ranges(spans: Iterable[tuple[int, int]], block_bytes: int) -> Iterator[Range]:
    begin, end, records = -1, 0, 0
    for first, last in spans:
        begin, end, records = (first if begin < 0 else begin), last, records + 1
        if end - begin >= block_bytes:
            yield Range(begin, end, records)
            begin, records = -1, 0
    if records:
        yield Range(begin, end, records)
