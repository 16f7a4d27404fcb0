"""Resolution of file arguments, and checks that the files exist."""

import contextlib
import glob
import math
import os
import re
from collections.abc import Iterator, Sequence

from horovod.data.source import place_here

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Files to read, given as one or several paths.

Each is a file; a directory, for its files; a pattern with ``*``, ``?``, ``[...]`` or ``**`` (nested directories); or a
numbered range of names such as ``train-{000..127}.tar``.
"""

_ROW = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}", re.ASCII)
_MOST_NAMES = 1 << 20
"""Maximum number of names of one range, or of nested ranges."""
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, Zstandard


def find(paths: Paths, suffix: str = "") -> list[str]:
    """Return the names of the files in the given order; files of a directory or pattern are sorted.

    Args:
        paths: Files, directories, patterns or ranges.
        suffix: Required ending of names in directories. Names that begin with ``_`` or ``.`` are skipped there.

    Raises:
        ValueError: If something does not exist, matches no file, or names a file twice.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [file for one in given for file in _files(os.fspath(one), suffix)]
    if not found:
        raise ValueError(f"paths must name at least one file, got {paths!r}{place_here()}")
    if lost := [file for file in found if not os.path.isfile(file)]:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise ValueError(f"paths must name existing files, got {', '.join(lost[:3])}{more}{place_here()}")
    if len(set(found)) < len(found):
        twice = next(file for index, file in enumerate(found) if file in found[:index])
        raise ValueError(f"paths must name each file once, got {twice} twice{place_here()}")
    return found


def _files(path: str, suffix: str) -> list[str]:
    if os.path.isdir(path):
        names = (name for name in sorted(os.listdir(path)) if name.endswith(suffix) and name[0] not in "._")
        files = [file for file in (os.path.join(path, name) for name in names) if os.path.isfile(file)]
        return files or _nothing(path, f"a folder without files{f' *{suffix}' if suffix else ''}")
    if os.path.exists(path):
        return [path]
    count = math.prod(1 + abs(int(last) - int(first)) for first, last in _ROW.findall(path))
    if count > _MOST_NAMES:
        raise ValueError(
            f"paths must expand to at most {_MOST_NAMES} names, got {path}, which expands to {count}{place_here()}"
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
    # Like in a shell: also descending, and padded to the same width if a number begins with 0.
    padded = any(text[0] == "0" and len(text) > 1 for text in match.groups())
    width = max(map(len, match.groups())) if padded else 0
    for number in range(first, last + 1) if first <= last else range(first, last - 1, -1):
        yield from _rows(f"{path[: match.start()]}{number:0{width}d}{path[match.end() :]}")


def _nothing(path: str, what: str) -> list[str]:
    raise ValueError(f"paths has {path}, {what}{place_here()}")


def size_of(path: str) -> int:
    """Return the size of a file in bytes. Raises ValueError naming a file that cannot be read."""
    with readable(path):
        return os.path.getsize(path)


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Convert an OSError in the block to a ValueError that names the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}{place_here()}") from error


def refuse_packed(path: str) -> None:
    """Raise ValueError for a compressed file, in which nothing can be found without reading everything before it."""
    with open(path, "rb") as file:
        begin = file.read(6)
    if begin.startswith(_PACKED):
        raise ValueError(f"{path} must not be compressed; decompress it{place_here()}")


def read(path: str, size: int, begin: int, end: int) -> bytes:
    """Return the bytes ``begin`` to ``end`` of a file.

    Raises:
        ValueError: If the file no longer has ``size`` bytes or cannot be read; names it.
    """
    try:
        with open(path, "rb") as file:
            now = os.fstat(file.fileno()).st_size
            if now != size:
                had = f"had {size} bytes when the source was created"
                raise ValueError(f"{path} {had}, but has {now} now{place_here()}")
            file.seek(begin)
            data = file.read(end - begin)
    except OSError as error:
        raise ValueError(f"{path} can no longer be read: {error}{place_here()}") from error
    if len(data) < end - begin:
        raise ValueError(f"{path} must have at least {end} bytes, got {begin + len(data)}{place_here()}")
    return data
