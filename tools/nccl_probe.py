"""Check NCCL with two ranks on one GPU; NCCL_HOSTID makes NCCL treat them as two hosts.

    python tools/nccl_probe.py [--driver libcuda.so.1] [--nccl PATH] [--json nccl.json]

The program checks sums, measures allreduces, and checks that a rank can abort after the other rank has died. It needs
only Python, with tools/gpu_probe.py and its modules in the same folder. The ranks share one GPU and take turns, which
the measured times include. The exit code is 1 if a result is wrong or an operation hangs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

from gpu_probe import say
from gpu_probe_driver import NOT_YET, Cuda
from gpu_probe_machine import nccl

FLOAT32, SUM = 7, 0
RANKS = 2
COUNT = 1 << 20


class Id(ctypes.Structure):
    """NCCL's unique id, a struct that C functions take by value."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


class Nccl:
    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.comm = ctypes.c_void_p()

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            self.library.ncclGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name} gave {code}: {self.library.ncclGetErrorString(code).decode()}")

    def allreduce(self, memory: ctypes.c_uint64, count: int, stream: ctypes.c_void_p) -> None:
        self.call(
            "ncclAllReduce",
            memory,
            memory,
            ctypes.c_size_t(count),
            ctypes.c_int(FLOAT32),
            ctypes.c_int(SUM),
            self.comm,
            stream,
        )

    def asynchronous_error(self) -> int:
        found = ctypes.c_int(-1)
        self.call("ncclCommGetAsyncError", self.comm, ctypes.byref(found))
        return found.value


def rank(me: int, driver: str, path: str) -> None:
    """Run one rank. It exchanges lines of text with the parent process."""
    cuda, lib, found = Cuda(driver), Nccl(path), {}
    unique = Id()
    if me == 0:
        lib.call("ncclGetUniqueId", ctypes.byref(unique))
        say(ctypes.string_at(ctypes.byref(unique), 128).hex())
    else:
        unique = Id.from_buffer_copy(bytes.fromhex(input()))
    start = time.perf_counter()
    lib.call("ncclCommInitRank", ctypes.byref(lib.comm), ctypes.c_int(RANKS), unique, ctypes.c_int(me))
    found["communicator, s"] = round(time.perf_counter() - start, 3)
    stream, memory = cuda.stream(), cuda.allocate(4 * COUNT)
    values = (ctypes.c_float * COUNT)(*([me + 1.0] * COUNT))
    cuda.up(memory, values, 4 * COUNT, stream)
    lib.allreduce(memory, COUNT, stream)
    cuda.down(values, memory, 4 * COUNT, stream)
    cuda.wait(stream)
    found["right"] = all(value == 3.0 for value in values)
    for label, count, times in (("4 KiB, us", 1024, 200), ("4 MiB, us", COUNT, 20)):
        for _ in range(5):
            lib.allreduce(memory, count, stream)
        cuda.wait(stream)
        start = time.perf_counter()
        for _ in range(times):
            lib.allreduce(memory, count, stream)
        found[f"calls of {label}"] = round(1e6 * (time.perf_counter() - start) / times, 1)
        cuda.wait(stream)
        found[label] = round(1e6 * (time.perf_counter() - start) / times, 1)
    say("ready")
    input()  # Wait for the parent process, which meanwhile kills rank 1 and then lets rank 0 continue.
    if me == 0:
        found |= alone(cuda, lib, memory, stream)
        say(json.dumps(found))
    # Exit even if a thread started by a library hangs.
    os._exit(0)


def alone(cuda: Cuda, lib: Nccl, memory: ctypes.c_uint64, stream: ctypes.c_void_p) -> dict[str, Any]:
    """Start an allreduce that the other rank never joins, abort it, and return the outcome."""
    found: dict[str, Any] = {}
    event = cuda.event()
    lib.allreduce(memory, 1024, stream)
    cuda.call("cuEventRecord", event, stream)
    time.sleep(2.0)
    found["2 s after the loss: event"] = cuda.library.cuEventQuery(event)
    found["2 s after the loss: asynchronous error"] = lib.asynchronous_error()
    result: list[str] = []

    def abort() -> None:
        try:
            cuda.call("cuCtxPushCurrent_v2", cuda.context)
            lib.call("ncclCommAbort", lib.comm)
            result.append("done")
        except Exception as error:
            result.append(str(error))

    thread = threading.Thread(target=abort, daemon=True)
    start = time.perf_counter()
    thread.start()
    thread.join(15.0)
    found["abort"] = result[0] if result else "not done within 15 s"
    found["abort, s"] = round(time.perf_counter() - start, 3)
    while cuda.library.cuEventQuery(event) == NOT_YET and time.perf_counter() - start < 15:
        time.sleep(0.001)
    found["stream after the abort"] = cuda.library.cuEventQuery(event)
    found["stream free after, s"] = round(time.perf_counter() - start, 3)
    return found


def run(driver: str, path: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--driver", driver, "--nccl", path, "--rank"]
    quiet = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}
    ranks = [
        subprocess.Popen(
            [*command, str(me)],
            env={**os.environ, **quiet, "NCCL_HOSTID": f"host{me}", "NCCL_DEBUG_FILE": "/dev/stderr"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for me in range(RANKS)
    ]
    killer = threading.Timer(50.0, lambda: [process.kill() for process in ranks])
    killer.start()

    def line(me: int) -> str:
        text = ranks[me].stdout.readline().strip()  # type: ignore[union-attr]
        if not text:
            raise RuntimeError(f"rank {me} ended or took too long")
        return text

    def send(me: int, text: str) -> None:
        ranks[me].stdin.write(text + "\n")  # type: ignore[union-attr]

    try:
        send(1, line(0))
        assert line(0) == line(1) == "ready"
        ranks[1].kill()
        ranks[1].wait()
        send(0, "lost")
        return json.loads(line(0))
    finally:
        killer.cancel()
        for process in ranks:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="NCCL with two ranks on one GPU.")
    parser.add_argument("--driver", default="libcuda.so.1", help="default %(default)s")
    parser.add_argument("--nccl", help="path of libnccl.so.2; default: that of Python's packages, else the system's")
    parser.add_argument("--json", help="where the result goes besides")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    path = args.nccl or nccl()["path"]
    if args.rank is not None:
        rank(args.rank, args.driver, path)
    try:
        found = {"NCCL": path, **run(args.driver, path)}
    except Exception as error:
        found = {"NCCL": path, "failed": f"{type(error).__name__}: {error}"}
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text + "\n")
    return int(found.get("right") is not True or found.get("abort") != "done")


if __name__ == "__main__":
    sys.exit(main())
