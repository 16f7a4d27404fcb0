"""Rank of benchmarks/delay/run.py, which reads commands from stdin (a JSON list per line) and answers on stdout.

Peers: "ours" is the engine without a framework, "gloo" is torch.distributed, "bare" two sockets that measure the
network's delay.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

_PR_SET_PDEATHSIG = 1


class Peer(Protocol):
    def prepare(self, nbytes: int) -> Callable[[], None]:
        """Return a function that does one operation on `nbytes` bytes."""

    def check(self) -> bool:
        """Return True if the last operation's result was correct."""

    def counters(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Ours:
    """Blocking in-place allreduce with the engine: float32, sum."""

    def __init__(self) -> None:
        from horovod.common.basics import HorovodBasics
        from horovod.common.state import state

        self._basics = HorovodBasics("benchmark")
        self._basics.init()
        self._engine = state.require_engine()

    def prepare(self, nbytes: int) -> Callable[[], None]:
        from horovod._core import KIND_ALLREDUCE
        from horovod.common.dtypes import FLOAT32
        from horovod.common.ops import Sum

        data = self._data = np.ones(max(1, nbytes // 4), dtype=np.float32)
        run, address, shape, name = self._engine.run, data.ctypes.data, data.shape, f"x{nbytes}"

        def once() -> None:
            data.fill(1)
            run(KIND_ALLREDUCE, name, address, address, shape, FLOAT32, Sum, 0, 1.0, 1.0, 0, None, "", 0).wait()

        return once

    def check(self) -> bool:
        return bool((self._data == self._basics.size()).all())

    def counters(self) -> dict[str, Any]:
        return {key: value for key, value in self._engine.stats().items() if key in ("scheduled", "negotiated")}

    def close(self) -> None:
        self._basics.shutdown()


class Gloo:
    """Blocking all_reduce with torch.distributed on gloo: float32, sum."""

    def __init__(self) -> None:
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self._torch = torch
        torch.distributed.init_process_group("gloo")

    def prepare(self, nbytes: int) -> Callable[[], None]:
        data = self._data = self._torch.ones(max(1, nbytes // 4))
        all_reduce = self._torch.distributed.all_reduce

        def once() -> None:
            data.fill_(1)
            all_reduce(data)

        return once

    def check(self) -> bool:
        return bool((self._data == self._torch.distributed.get_world_size()).all())

    def counters(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._torch.distributed.destroy_process_group()


class Bare:
    """Round trip between ranks 0 and 1; one message takes half of it."""

    def __init__(self) -> None:
        self._rank = int(os.environ["RANK"])
        here = (os.environ["BARE_ADDRESS"], int(os.environ["BARE_PORT"]))
        if self._rank == 0:
            with socket.create_server(here) as listener:
                print(json.dumps("listening"), flush=True)
                self._socket, _ = listener.accept()
        else:
            self._socket = socket.create_connection(here, timeout=30)
            self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def prepare(self, nbytes: int) -> Callable[[], None]:
        data, link = bytes(max(1, nbytes)), self._socket

        def once() -> None:
            if self._rank == 0:
                link.sendall(data)
            link.recv(len(data), socket.MSG_WAITALL)
            if self._rank == 1:
                link.sendall(data)

        return once

    def check(self) -> bool:
        return True

    def counters(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._socket.close()


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the parent, even during a wait
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["ours", "gloo", "bare"])
    peer: Peer = {"ours": Ours, "gloo": Gloo, "bare": Bare}[parser.parse_args().peer]()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        nbytes, warm, count = json.loads(line)
        once = peer.prepare(nbytes)
        for _ in range(warm):
            once()
        before, seconds = peer.counters(), []
        for _ in range(count):
            begin = time.perf_counter()
            once()
            seconds.append(time.perf_counter() - begin)
        after = peer.counters()
        moved = {key: after[key] - before[key] for key in after}
        print(json.dumps({"seconds": seconds, "right": peer.check(), "counters": moved}), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
