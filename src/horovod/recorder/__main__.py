"""Command line of the flight recorder: ``python -m horovod.recorder diff DIR``.

The exit code is 0 if all ranks ran the same operations, 1 if they diverged, and 2 if the files cannot be read.
"""

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

# All ranks of a process set execute the same operations in the same order, so an operation has the same position on
# each rank. Usually, the ranks' requests diverge after the last operation that all ranks have executed. In other cases,
# some ranks have stopped earlier. If ranks have executed different operations at the same position, Horovod has a bug.

MAX_RANKS = 1 << 20
_Natural = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class Dump:
    """Contents of one rank's flight recorder file."""

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
    """Time of writing on the host's monotonic clock, in ns. The entries use this clock."""

    def ago(self, entry: dict[str, Any]) -> float:
        """Return the time in seconds from the end of ``entry`` to the dump."""
        return max(0.0, (self.monotonic - entry["end"]) * 1e-9)


class _Head(msgspec.Struct):
    horovod: Literal["recorder"]
    rank: _Natural
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
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
    """Read a rank's file, without trusting its contents.

    Raises:
        ValueError: If the file is not from a flight recorder. The message names the file.
        OSError: If the file cannot be read.
    """
    # Without O_NONBLOCK, opening a pipe could block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as lines:
        try:
            if not stat.S_ISREG(os.fstat(lines.fileno()).st_mode):
                raise ValueError
            head = _head.decode(next(lines))
            if head.rank >= head.size:
                raise ValueError
            # The last line can be incomplete, if the disk was full.
            entries = [dict(_entry.decode(line)) for line in lines if line.endswith(b"}\n")]
        except (StopIteration, ValueError, RecursionError):
            raise ValueError(f"{path} must be a file of a flight recorder") from None
    label, why = shown(head.label), "\n".join(map(shown, head.why.splitlines()))
    printable = tuple({key: shown(v) if isinstance(v, str) else v for key, v in entry.items()} for entry in entries)
    return Dump(head.rank, head.size, label, why, printable, head.unix_ns * 1e-9, head.monotonic_ns)


def shown(text: str) -> str:
    """Escape unprintable characters in the text, such as terminal control sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def read_folder(folder: Path) -> list[Dump]:
    """Read the files in a folder and return them in rank order.

    Raises:
        ValueError: If there are no files, several files of one rank, or an invalid file.
    """
    found: dict[int, Dump] = {}
    for path in sorted(folder.glob("*.jsonl")):
        dump = read(path)
        if dump.rank in found:
            raise ValueError(f"{folder} must have one file for each rank, got several of rank {dump.rank}")
        found[dump.rank] = dump
    if not found:
        raise ValueError(f"{folder} has no files of flight recorders (recorder.rankN.jsonl)")
    return [found[rank] for rank in sorted(found)]


_SIGNATURE = ("kind", "name", "dtype", "op")


def compare(dumps: Sequence[Dump]) -> tuple[str, bool]:
    """Return the report as text, and whether the ranks diverge."""
    lines = [_about(dump) for dump in dumps]
    size = dumps[0].size
    have = {dump.rank for dump in dumps}
    absent = [rank for rank in range(size) if rank not in have]
    if absent:
        lines.append(f"not there: {_ranks(absent)}")
    lines.append("")
    sets = sorted({entry["set"] for dump in dumps for entry in dump.entries if entry["what"] == "carried out"})
    found = [part for number in sets or [0] if (part := _first(dumps, number))]
    if not found:
        lines.append("no divergence: all ranks have done the same, as far as their recorders go back")
    for part in found:
        lines += part
    return "\n".join(lines) + "\n", bool(found)


def _about(dump: Dump) -> str:
    done = [entry for entry in dump.entries if entry["what"] == "carried out"]
    last = f"; the last operation ended {dump.ago(done[-1]):.1f} s before" if done else ""
    why = dump.why.splitlines()[0] if dump.why else "?"
    return f"{dump.label}: {len(dump.entries)} entries, written because: {why}{last}"


def _first(dumps: Sequence[Dump], number: int) -> list[str]:
    """Format a report on the first divergence within a process set. Return no lines if there is none."""
    executed = {dump.rank: _executed(dump, number) for dump in dumps}
    members = [dump for dump in dumps if executed[dump.rank] or _announced(dump, number, -1)]
    if len(members) < 2:
        return []
    return (
        _other_operation(members, executed)
        or _failed(members, number)
        or _other_announcement(members, executed, number)
        or _stopped_earlier(members, executed)
    )


def _executed(dump: Dump, number: int) -> dict[int, dict[str, Any]]:
    return {
        entry["position"]: entry for entry in dump.entries if entry["what"] == "carried out" and entry["set"] == number
    }


def _other_operation(dumps: Sequence[Dump], executed: dict[int, dict[int, dict[str, Any]]]) -> list[str]:
    for position in sorted({p for dump in dumps for p in executed[dump.rank]}):
        entries = {dump.rank: executed[dump.rank][position] for dump in dumps if position in executed[dump.rank]}
        if len({_signature(entry) for entry in entries.values()}) > 1:
            return [f"first divergence: operation {position} is not the same on all ranks", *_listed(entries)]
    return []


def _failed(dumps: Sequence[Dump], number: int) -> list[str]:
    """Format a report on an operation that failed because the ranks' requests differed."""
    for entry in (entry for dump in dumps for entry in dump.entries if entry["what"] == "failed"):
        if entry["set"] != number:
            continue
        announced = {dump.rank: _before_it_failed(dump, entry) for dump in dumps}
        mine = {rank: found for rank, found in announced.items() if found is not None}
        if len({(*_signature(found), tuple(found["shape"]), found["dimensions"]) for found in mine.values()}) > 1:
            return [
                f"first divergence: '{entry['name']}' was announced differently, and failed on all ranks",
                *_listed(mine),
            ]
    return []


def _before_it_failed(dump: Dump, failed: dict[str, Any]) -> dict[str, Any] | None:
    """Return the rank's last request of the failed operation before the failure, or None."""
    found = None
    for entry in dump.entries:
        if (entry["name"], entry["set"], entry["face"]) != (failed["name"], failed["set"], failed["face"]):
            continue
        if entry["what"] == "announced":
            found = entry
        elif entry["what"] == "failed":
            break
    return found


def _announced(dump: Dump, number: int, after: int) -> list[dict[str, Any]]:
    """Return the rank's requests that were recorded after the executed operation at position ``after``."""
    begin = next(
        (
            e["number"]
            for e in dump.entries
            if e["what"] == "carried out" and e["set"] == number and e["position"] == after
        ),
        -1,
    )
    return [e for e in dump.entries if e["what"] == "announced" and e["set"] == number and e["number"] > begin]


def _other_announcement(
    dumps: Sequence[Dump], executed: dict[int, dict[int, dict[str, Any]]], number: int
) -> list[str]:
    """Format a report on the first request that differs, after the last operation that all ranks have executed."""
    last = min((max(executed[dump.rank], default=-1) for dump in dumps), default=-1)
    after = {dump.rank: _announced(dump, number, last) for dump in dumps}
    for index in range(max(map(len, after.values()))):
        now = {rank: entries[index] for rank, entries in after.items() if index < len(entries)}
        missing = [rank for rank in after if rank not in now]
        alike = {(*_signature(entry), tuple(entry["shape"]), entry["dimensions"]) for entry in now.values()}
        if len(alike) == 1 and not missing:
            continue
        at = (
            f"after operation {last}, the last that all carried out"
            if last >= 0
            else "before any operation was carried out"
        )
        lines = [f"first divergence: {at}, ranks announce different operations", *_listed(now)]
        return lines + [f"  {_ranks(missing)}: nothing" for _ in missing[:1]]
    return []


def _stopped_earlier(dumps: Sequence[Dump], executed: dict[int, dict[int, dict[str, Any]]]) -> list[str]:
    last = {dump.rank: max(executed[dump.rank], default=-1) for dump in dumps}
    most, least = max(last.values()), min(last.values())
    if most == least:
        return []
    ahead = next(rank for rank in last if last[rank] == most)
    behind = [rank for rank in last if last[rank] == least]
    entry = executed[ahead].get(least + 1)
    what = f", which was {_text(entry)}" if entry is not None else ""
    return [f"first divergence: {_ranks(behind)} did not carry out operation {least + 1}{what}; rank {ahead} did"]


def _signature(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in _SIGNATURE)


def _listed(entries: dict[int, dict[str, Any]]) -> list[str]:
    """Return one line for each distinct entry, with the ranks that recorded it."""
    by: dict[str, list[int]] = {}
    for rank, entry in entries.items():
        by.setdefault(_text(entry), []).append(rank)
    return [f"  {_ranks(ranks)}: {text}" for text, ranks in by.items()]


def _text(entry: dict[str, Any]) -> str:
    shape = ", ".join(map(str, entry["shape"])) + (", ..." if entry["dimensions"] > len(entry["shape"]) else "")
    more = f" and {entry['count'] - 1} fused with it" if entry["count"] > 1 else ""
    op = f", {entry['op']}" if entry["kind"] in ("allreduce", "reducescatter") else ""
    return f"{entry['kind']} '{entry['name']}'{more} ({entry['dtype']}[{shape}]{op})"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.recorder", description="What flight recorders have written."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("diff", help="name the first divergence between ranks")
    one.add_argument("directory", type=Path, help="with the files recorder.rankN.jsonl of the ranks")
    given = parser.parse_args(arguments)
    try:
        text, parted = compare(read_folder(given.directory))
    except (OSError, ValueError) as error:
        print(f"horovod.recorder: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 1 if parted else 0


if __name__ == "__main__":
    sys.exit(main())
