"""Parser of the files that flight recorders write."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

MOST_RANKS = 1 << 20
_Natural = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class Dump:
    """Flight recorder of one rank."""

    rank: int
    size: int
    label: str
    """Name of the rank in messages, with host and process."""
    why: str
    """Reason why the file was written."""
    entries: tuple[dict[str, Any], ...]
    """Recorded events, oldest first, with the fields of core/trace/dump.h."""
    unix: float
    """Time of writing, in seconds since the Unix epoch."""
    monotonic: int
    """The same time in ns of the host's monotonic clock, which the entries use; see ``ago``."""

    def ago(self, entry: dict[str, Any]) -> float:
        """Return the seconds from the entry's end to the writing of the file."""
        return max(0.0, (self.monotonic - entry["end"]) * 1e-9)


class _Head(msgspec.Struct):
    horovod: Literal["recorder"]
    rank: _Natural
    size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    label: str
    why: str
    unix_ns: int
    monotonic_ns: int


class _Entry(TypedDict):
    number: int
    what: str
    begin: int
    end: int
    name: str
    kind: str
    dtype: str
    op: str
    set: int
    face: int
    shape: list[int]
    dimensions: int
    count: int
    bytes: int
    schedule: str
    position: int
    guarded: bool


_head = msgspec.json.Decoder(_Head)
_entry = msgspec.json.Decoder(_Entry)


def read(path: Path) -> Dump:
    """Read a rank's file. Its content is not trusted.

    Raises:
        ValueError: If it is not a flight recorder's file. The message names it.
        OSError: If it cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as lines:  # do not block on a pipe
        try:
            if not stat.S_ISREG(os.fstat(lines.fileno()).st_mode):
                raise ValueError
            head = _head.decode(next(lines))
            if head.rank >= head.size:
                raise ValueError
            # If the disk was full, the last line may be incomplete.
            entries = [dict(_entry.decode(line)) for line in lines if line.endswith(b"}\n")]
        except (StopIteration, ValueError, RecursionError):
            raise ValueError(f"{path} is not what a flight recorder writes") from None
    label, why = shown(head.label), "\n".join(map(shown, head.why.splitlines()))
    printable = tuple({key: shown(v) if isinstance(v, str) else v for key, v in entry.items()} for entry in entries)
    return Dump(head.rank, head.size, label, why, printable, head.unix_ns * 1e-9, head.monotonic_ns)


def shown(text: str) -> str:
    """Return the text with unprintable characters escaped, such as control sequences of terminals."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def read_folder(folder: Path) -> list[Dump]:
    """Read the files in a folder and return them by rank.

    Raises:
        ValueError: If there are none, or several of one rank, or one is invalid.
    """
    found: dict[int, Dump] = {}
    for path in sorted(folder.glob("*.jsonl")):
        dump = read(path)
        if dump.rank in found:
            raise ValueError(f"{folder} has several files of rank {dump.rank}; accepted is one for each rank")
        found[dump.rank] = dump
    if not found:
        raise ValueError(f"{folder} has no files of flight recorders (recorder.rankN.jsonl)")
    return [found[rank] for rank in sorted(found)]
