"""One rank of one peer's job. Connects to the driver's Unix socket and measures what it is told to; sleeps in between.

Imports nothing but the standard library itself, because MPI runs in an environment without PyTorch. A message is a line
of JSON:
    driver: {"case": {...}, "mode": "blocking", "warm_up": 3}      worker: {"seconds": [...]} or {"error": "..."}
    driver: {"forget": true}   drops buffers and models             worker: {"seconds": []}
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import threading
import time
import traceback
from typing import Any

from cases import Case


def pin(cpu: int) -> None:
    """Moves every thread of this process to one core; after the set-up, in which libraries count the usable cores."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), {cpu})
        except ProcessLookupError:
            pass  # ended meanwhile


class Rank:
    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.prepared: dict[tuple[str, str, str], Any] = {}

    def measure(self, case: Case, mode: str, warm_up: int) -> list[float]:
        """Seconds per operation, a number for each sample. A barrier before each sample keeps the ranks together."""
        key = (case.kind, case.label, mode)
        if key not in self.prepared:
            self.prepared[key] = self.peer.prepare(case, mode)
        operation = self.prepared[key]
        for _ in range(warm_up):
            operation()
        seconds = []
        for _ in range(case.samples):
            self.peer.barrier()
            start = time.perf_counter()
            for _ in range(case.inner):
                operation()
            seconds.append((time.perf_counter() - start) / case.inner)
        return seconds

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("forget"):
            self.prepared.clear()
            return {"seconds": []}
        return {"seconds": self.measure(Case(**request["case"]), request["mode"], request["warm_up"])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--no-pin", action="store_true")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    peer = importlib.import_module(f"peers.{args.peer}").start()
    if not args.no_pin:
        pin(cpus[peer.rank % len(cpus)])
    rank = Rank(peer)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(args.socket)
        stream = connection.makefile("rw")
        print(json.dumps({"rank": peer.rank, "about": peer.about}), file=stream, flush=True)
        for line in stream:
            try:
                reply = rank.answer(json.loads(line))
            except Exception:
                reply = {"error": traceback.format_exc(limit=4)}
            try:
                print(json.dumps(reply), file=stream, flush=True)
            except BrokenPipeError:
                os._exit(1)  # the driver is gone, and so may be the other ranks: a goodbye to them could wait for ever
    last_resort = threading.Timer(10, os._exit, [1])
    last_resort.daemon = True
    last_resort.start()
    peer.stop()


if __name__ == "__main__":
    main()
