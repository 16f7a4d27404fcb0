"""Reading the files that flight recorders write."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Dump:
    """One rank's."""

    rank: int
    size: int
    label: str
    """How messages name the rank, with its host and process."""
    why: str
    entries: tuple[dict[str, Any], ...]
    """Oldest first; the fields are those of core/trace/dump.h."""
    unix: float
    """When it was written, in s of the epoch; the entries' times are of the host's monotonic clock, see ``ago``."""
    monotonic: int

    def ago(self, entry: dict[str, Any]) -> float:
        """How many seconds before the dump the entry's end was."""
        return max(0.0, (self.monotonic - entry["end"]) * 1e-9)


def read(path: Path) -> Dump:
    """Raises ValueError naming the file and what is wrong, OSError when it cannot be read."""
    with path.open(encoding="utf-8") as lines:
        try:
            head = json.loads(next(lines))
            if head.get("horovod") != "recorder":
                raise ValueError
            entries = []
            for line in lines:
                if line.endswith("}\n"):  # the last one of a disk that was full may be a part
                    entries.append(json.loads(line))
            return Dump(
                head["rank"],
                head["size"],
                head["label"],
                head["why"],
                tuple(entries),
                head["unix_ns"] * 1e-9,
                head["monotonic_ns"],
            )
        except (StopIteration, KeyError, TypeError, AttributeError, ValueError):
            raise ValueError(f"{path} is not what a flight recorder writes") from None


def read_folder(folder: Path) -> list[Dump]:
    """By rank. Raises ValueError when there are none, or several of one rank."""
    found: dict[int, Dump] = {}
    for path in sorted(folder.glob("*.jsonl")):
        dump = read(path)
        if dump.rank in found:
            raise ValueError(f"{folder} has several files of rank {dump.rank}; accepted is one for each rank")
        found[dump.rank] = dump
    if not found:
        raise ValueError(f"{folder} has no files of flight recorders (recorder.rankN.jsonl)")
    return [found[rank] for rank in sorted(found)]
