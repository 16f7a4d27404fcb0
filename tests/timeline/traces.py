"""Made-up trace files of ranks, for the tool's tests."""

import json
from pathlib import Path
from typing import Any


class Maker:
    """Writes the contents of a rank's timeline. Times in microseconds."""

    def __init__(self, rank: int, size: int, start_ns: int = 0, clock: tuple[int, int] | None = (0, 0)) -> None:
        about = {"rank": rank, "size": size, "host": f"host{rank}", "process": 1, "start_ns": start_ns}
        name = {"name": f"rank {rank}", "start_time_since_epoch_in_micros": 1000}
        self.rank = rank
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 0, "name": "process_name", "args": name},
            {"ph": "M", "pid": 0, "name": "horovod", "args": about},
        ]
        if clock is not None:
            self.clock(0, *clock)
        self._pids: dict[tuple[str, int], int] = {}

    def clock(self, at: float, offset_ns: int, error_ns: int) -> None:
        args = {"offset_ns": offset_ns, "error_ns": error_ns}
        self.events.append({"ph": "M", "pid": 0, "tid": 0, "ts": at, "name": "clock_sync", "args": args})

    def pid(self, name: str, process_set: int = 0) -> int:
        key = name, process_set
        if key not in self._pids:
            self._pids[key] = len(self._pids) + 1
            args = {"name": name, **({"process_set": process_set} if process_set else {})}
            self.events.append({"ph": "M", "pid": self._pids[key], "name": "process_name", "args": args})
        return self._pids[key]

    def negotiated(
        self, name: str, number: int, ready: float, agreed: float, start: float, end: float, process_set: int = 0
    ) -> None:
        """Write an allreduce that was requested, and queued once agreed on."""
        self._add(name, process_set, ready, "B", "NEGOTIATE_ALLREDUCE")
        self._add(name, process_set, ready, "X", str(self.rank))
        self._add(name, process_set, agreed, "E")
        self._carry(name, process_set, number, agreed, start, end)

    def scheduled(self, name: str, number: int, ready: float, start: float, end: float) -> None:
        self._carry(name, 0, number, ready, start, end)

    def _carry(self, name: str, process_set: int, number: int, since: float, start: float, end: float) -> None:
        self._add(name, process_set, since, "B", "ALLREDUCE", number=number)
        self._add(name, process_set, since, "B", "QUEUE")
        self._add(name, process_set, start, "E")
        self._add(name, process_set, start, "B", "MEMCPY_IN_FUSION_BUFFER")
        self._add(name, process_set, start + 1, "E")
        self._add(name, process_set, start + 1, "B", "GLOO_ALLREDUCE")
        self._add(name, process_set, end, "E")
        self._add(name, process_set, end, "E", dtype="float32", shape="[1]")

    def _add(self, tensor: str, process_set: int, at: float, phase: str, label: str = "", **args: Any) -> None:
        event: dict[str, Any] = {"ph": phase, "pid": self.pid(tensor, process_set), "ts": at}
        if label:
            event["name"] = label
        if phase == "X":
            event["dur"] = 0
        if args:
            event["args"] = args
        self.events.append(event)

    def write(self, path: Path) -> Path:
        lines = ",\n".join(json.dumps(event) for event in self.events)
        path.write_text(f"[\n{lines}\n]\n" + " " * 100, encoding="utf-8")
        return path
