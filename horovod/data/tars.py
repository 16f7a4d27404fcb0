"""TarFiles: samples in tar archives, in the form that WebDataset writes."""

import io
import itertools
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

from horovod.data.ranges import ByteRanges, Range
from horovod.data.source import place_here

_BLOCK = tarfile.BLOCKSIZE


class TarFiles(ByteRanges):
    """Consecutive files of an archive whose names are the same up to the first dot are a record: ``0017.jpg`` and
    ``0017.cls`` are ``{"__key__": "0017", "jpg": b"...", "cls": b"..."}``. Not compressed. Members without a dot in
    their name, and what is no file, are passed over."""

    SUFFIX = ".tar"
    TORN = (tarfile.TarError,)

    @staticmethod
    def index(path: str, size: int, block_bytes: int) -> Iterator[Range]:
        try:
            with tarfile.open(path, "r:") as archive:
                yield from _ranges(_spans(_members(archive)), block_bytes)
                end = archive.offset
        except (tarfile.TarError, OSError) as error:
            raise ValueError(f"{path} is torn, or no tar archive: {error}{place_here()}") from error
        with open(path, "rb") as file:
            file.seek(end)
            # tarfile takes an archive that ends between two members, or goes on with anything else, for a whole one.
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise ValueError(f"{path} is torn: no end of the archive at byte {end} of {size}{place_here()}")

    @staticmethod
    def parse(data: bytes) -> list[dict[str, Any]]:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            return [
                {"__key__": key, **{_split(one.name)[1]: _content(data, one) for one in members}}
                for key, members in itertools.groupby(_members(archive), lambda one: _split(one.name)[0])
            ]


def _content(data: bytes, member: tarfile.TarInfo) -> bytes:
    return data[member.offset_data : member.offset_data + member.size]


def _split(name: str) -> tuple[str, str]:
    """Key and rest of a member's name, of which one is empty where the name has no dot, or nothing before it."""
    folder, slash, file = name.rpartition("/")
    stem, _, rest = file.partition(".")
    return (folder + slash + stem, rest) if stem else ("", "")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # it would keep all that it has read
        if member.issparse():
            raise tarfile.TarError(f"{member.name} is a sparse file")
        if member.isreg() and all(_split(member.name)):
            yield member


def _spans(members: Iterable[tarfile.TarInfo]) -> Iterator[tuple[int, int]]:
    """The bytes of each record."""
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
