"""One rank that is measured. Needs nothing but the standard library, because peers have environments of their own.

A process that ``serve``s connects to a driver's Unix socket and does what it is told; it sleeps in between. A message
is a line of JSON:
    worker: {"rank": 0, "about": "..."}                              once
    driver: {"case": {...}, "mode": "blocking", "warm_up": 3}       worker: {"seconds": [...]} or {"error": "..."}
    driver: {"forget": true}   drops buffers and models              worker: {"seconds": []}
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any


def pin(cpu: int) -> None:
    """Moves every thread of this process to one core; after the set-up, in which libraries count the usable cores."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), {cpu})
        except ProcessLookupError:
            pass  # ended meanwhile


def timed(
    operation: Callable[[], object], barrier: Callable[[], object], warm_up: int, samples: int, inner: int
) -> list[float]:
    """Seconds per operation, a number for each sample: the mean of ``inner`` in a row. A barrier before each sample
    keeps the ranks together."""
    for _ in range(warm_up):
        operation()
    seconds = []
    for _ in range(samples):
        barrier()
        start = time.perf_counter()
        for _ in range(inner):
            operation()
        seconds.append((time.perf_counter() - start) / inner)
    return seconds


class _Rank:
    def __init__(self, peer: Any, make_case: Callable[..., Any]) -> None:
        self._peer = peer
        self._make_case = make_case
        self._prepared: dict[str, Callable[[], object]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("forget"):
            self._prepared.clear()
            return {"seconds": []}
        case = self._make_case(**request["case"])
        key = json.dumps([request["case"], request["mode"]])
        if key not in self._prepared:
            self._prepared[key] = self._peer.prepare(case, request["mode"])
        operation, barrier = self._prepared[key], self._peer.barrier
        return {"seconds": timed(operation, barrier, request["warm_up"], case.samples, case.inner)}


def serve(peer: Any, path: str, make_case: Callable[..., Any], pinned: bool) -> None:
    """Answers the driver at the Unix socket ``path`` until it goes away.

    ``peer`` has rank, about (text), barrier(), stop() and prepare(case, mode), which returns the operation.
    ``make_case`` makes of a request's case an object with the attributes samples and inner.
    """
    if pinned:
        cpus = sorted(os.sched_getaffinity(0))
        pin(cpus[peer.rank % len(cpus)])
    rank = _Rank(peer, make_case)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
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
    last_resort.cancel()
