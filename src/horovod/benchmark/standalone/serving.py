"""Measurement loop of one rank. It uses only the standard library, because it also runs in other environments.

A process in ``serve`` connects to a driver's Unix socket, executes the driver's requests, and sleeps between them.
Messages are lines of JSON:

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
    """Pin every thread of this process to one core. Call this after libraries have determined the number of cores."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), {cpu})
        except ProcessLookupError:
            pass  # the thread has exited, so it cannot be pinned


def timed(
    operation: Callable[[], object],
    barrier: Callable[[], object],
    warm_up: int,
    samples: int,
    inner: int,
    settle: int = 0,
) -> list[float]:
    """Measure samples, and return each as seconds per operation: the mean of ``inner`` consecutive operations.

    A barrier before each sample synchronizes the ranks. ``settle`` operations, not measured, follow it, because a
    barrier interrupts what libraries prepare for repeated operations.
    """
    for _ in range(warm_up):
        operation()
    seconds = []
    for _ in range(samples):
        barrier()
        for _ in range(settle):
            operation()
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

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("forget"):
            self._prepared.clear()
            return {"seconds": []}
        case = self._make_case(**request["case"])
        key = json.dumps([request["case"], request["mode"]])
        if key not in self._prepared:
            self._prepared[key] = self._peer.prepare(case, request["mode"])
        operation, barrier = self._prepared[key], self._peer.barrier
        return {"seconds": timed(operation, barrier, request["warm_up"], case.samples, case.inner, case.inner // 4)}


def serve(peer: Any, path: str, make_case: Callable[..., Any], pinned: bool) -> None:
    """Serve requests from the driver over the Unix socket ``path`` until the driver disconnects.

    Args:
        peer: Object with rank, about (text), barrier(), stop() and prepare(case, mode), which returns the operation.
        path: Path of the socket.
        make_case: Function that converts a request's case to an object with the attributes samples and inner.
        pinned: True to pin this process to a core.
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
                reply = rank.reply(json.loads(line))
            except Exception:
                reply = {"error": traceback.format_exc(limit=4)}
            try:
                print(json.dumps(reply), file=stream, flush=True)
            except BrokenPipeError:
                # The driver has ended, and other ranks might have ended too. Exit immediately, because an orderly
                # shutdown could wait for them forever.
                os._exit(1)
    last_resort = threading.Timer(10, os._exit, [1])
    last_resort.daemon = True
    last_resort.start()
    peer.stop()
    last_resort.cancel()
