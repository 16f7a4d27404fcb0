"""Interface of record sources, and helpers that find, check and read files."""

import contextlib
import glob
import hashlib
import itertools
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from horovod.common.frontends import state


class Source(ABC):
    """Source of records in blocks. Each block is read as a whole.

    A subclass needs only ``lengths`` and a ``load`` that returns a list. Sources must be picklable. This lets one rank
    create a source, which can scan all files, and broadcast it.
    """

    lengths: Sequence[int]
    """Number of records of each block, which is equal on all ranks."""
    chains: Sequence[int] = ()
    """Number of blocks in each chain: consecutive blocks that should be read in order, like parts of compressed data.

    Empty if blocks are independent.
    """
    digest_of: str = "how many records each block has"
    """Text for error messages that names what ``digest`` depends on, including arguments of the source."""

    @abstractmethod
    def load(self, block: int) -> Any:
        """Return all records of a block. Raises ValueError naming the file if it is missing or damaged."""

    def walk(self) -> contextlib.AbstractContextManager[Callable[[int], Any]]:
        """Return a context manager for one iteration over the blocks.

        It yields a function with the same signature as ``load``, which can keep resources open between blocks.
        """
        return contextlib.nullcontext(self.load)

    def take(self, loaded: Any, places: Sequence[int]) -> Any:
        """Return the records at positions ``places`` within a loaded block. ``loaded`` is a result of ``load``."""
        return [loaded[place] for place in places]

    def join(self, items: Sequence[Any]) -> Any:
        """Concatenate several results of ``take`` into a batch."""
        return [record for part in items for record in part]

    def gather(self, chosen: Sequence[tuple[Any, Sequence[int]]]) -> Any:
        """Build a batch from (loaded block, indices within the block) pairs."""
        return self.join([self.take(loaded, places) for loaded, places in chosen])

    def made_of(self) -> Sequence[tuple[str, int]]:
        """Return the path and size in bytes of each file, in order. The list is empty if the source reads no files."""
        return ()

    def digest(self) -> str:
        """Return a digest that identifies the source's records.

        The digest depends on the number of records of each block, and on the names and sizes of the files. Names are
        relative to the files' common directory, so moving the directory does not change the digest.
        """
        files = self.made_of()
        names = _within([path for path, _ in files])
        same: Any = [list(self.lengths), *zip(names, (size for _, size in files), strict=True)]
        return hashlib.sha256(repr(same if files else same[0]).encode()).hexdigest()[:16]


def _within(paths: Sequence[str]) -> list[str]:
    """Return the paths relative to their common directory."""
    parts = [path.split("/") for path in paths]
    first, last = min(parts, default=[]), max(parts, default=[])
    same = (one == other for one, other in zip(first[:-1], last[:-1], strict=False))
    common = sum(1 for _ in itertools.takewhile(bool, same))
    return ["/".join(one[common:]) for one in parts]


def rank_suffix() -> str:
    """Return " (rank R)" as a suffix for error messages, or "" outside a job."""
    return f" (rank {state.job.rank})" if state.job is not None else ""


def check_count(name: str, value: Any, least: int) -> int:
    """Check that ``value`` is an integer of at least ``least``, and return it. Raises ValueError if it is not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}{rank_suffix()}")
    return value


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Files to read, given as one or several paths.

Each is a file; a directory, for its files; a pattern with ``*``, ``?``, ``[...]`` or ``**`` (nested directories); or a
numbered range of names such as ``train-{000..127}.tar``.
"""

_ROW = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}", re.ASCII)
_MAX_NAMES = 1 << 20
"""Maximum number of names that a numbered range, or a combination of ranges, can expand to."""
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # first bytes of gzip, bzip2, xz and Zstandard files


def find_files(paths: Paths, suffix: str = "") -> list[str]:
    """Find the files specified by ``paths``. Files from a directory or pattern are sorted.

    Args:
        paths: Files, directories, patterns or ranges.
        suffix: Required suffix of files in directories. Files in directories whose names begin with ``_`` or ``.`` are
            skipped.

    Returns:
        Paths of the files.

    Raises:
        ValueError: If a path does not exist or matches no file, or if a file is named twice.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [file for one in given for file in _files(os.fspath(one), suffix)]
    if not found:
        raise ValueError(f"paths must name at least one file, got {paths!r}{rank_suffix()}")
    if lost := [file for file in found if not os.path.isfile(file)]:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise ValueError(f"paths must name existing files, got {', '.join(lost[:3])}{more}{rank_suffix()}")
    if len(set(found)) < len(found):
        twice = next(file for index, file in enumerate(found) if file in found[:index])
        raise ValueError(f"paths must name each file once, got {twice} twice{rank_suffix()}")
    return found


def _files(path: str, suffix: str) -> list[str]:
    if os.path.isdir(path):
        names = (name for name in sorted(os.listdir(path)) if name.endswith(suffix) and name[0] not in "._")
        files = [file for file in (os.path.join(path, name) for name in names) if os.path.isfile(file)]
        return files or _nothing(path, f"a folder without files{f' *{suffix}' if suffix else ''}")
    if os.path.exists(path):
        return [path]
    count = math.prod(1 + abs(int(last) - int(first)) for first, last in _ROW.findall(path))
    if count > _MAX_NAMES:
        raise ValueError(
            f"paths must expand to at most {_MAX_NAMES} names, got {path}, which expands to {count}{rank_suffix()}"
        )
    rows = list(_rows(path))
    if any(glob.has_magic(row) for row in rows):
        return [
            file
            for row in rows
            for file in sorted(glob.glob(row, recursive=True)) or _nothing(row, "a pattern that no file fits")
        ]
    return rows


def _rows(path: str) -> Iterator[str]:
    match = _ROW.search(path)
    if match is None:
        yield path
        return
    first, last = int(match[1]), int(match[2])
    # As in a shell, ranges can count down, and numbers are padded to equal width if one of them begins with 0.
    padded = any(text[0] == "0" and len(text) > 1 for text in match.groups())
    width = max(map(len, match.groups())) if padded else 0
    for number in range(first, last + 1) if first <= last else range(first, last - 1, -1):
        yield from _rows(f"{path[: match.start()]}{number:0{width}d}{path[match.end() :]}")


def _nothing(path: str, what: str) -> list[str]:
    raise ValueError(f"paths has {path}, {what}{rank_suffix()}")


def size_of(path: str) -> int:
    """Return the size of a file in bytes. Raises ValueError naming the file if it cannot be read."""
    with readable(path):
        return os.path.getsize(path)


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Context manager that converts an OSError to a ValueError with the file's name."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}{rank_suffix()}") from error


def check_not_compressed(path: str) -> None:
    """Raise ValueError if a file is compressed, because compressed files do not support random access."""
    with open(path, "rb") as file:
        begin = file.read(6)
    if begin.startswith(_PACKED):
        raise ValueError(f"{path} must not be compressed; decompress it{rank_suffix()}")


def read_bytes(path: str, size: int, begin: int, end: int) -> bytes:
    """Return bytes ``begin`` to ``end`` of a file.

    Raises:
        ValueError: If the file no longer has ``size`` bytes, or cannot be read. The message names the file.
    """
    try:
        with open(path, "rb") as file:
            now = os.fstat(file.fileno()).st_size
            if now != size:
                had = f"had {size} bytes when the source was created"
                raise ValueError(f"{path} {had}, but has {now} now{rank_suffix()}")
            file.seek(begin)
            data = file.read(end - begin)
    except OSError as error:
        raise ValueError(f"{path} can no longer be read: {error}{rank_suffix()}") from error
    if len(data) < end - begin:
        raise ValueError(f"{path} must have at least {end} bytes, got {begin + len(data)}{rank_suffix()}")
    return data
