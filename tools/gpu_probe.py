"""Report the properties of a GPU and its driver within seconds, before longer checks run.

    python tools/gpu_probe.py [--driver libcuda.so.1] [--megabytes 256] [--json probe.json]

The report contains versions, data on the machine, copy rates and the cost of driver calls. It also says whether
processes can share memory and events, and whether a stream that waits for a value lets other processes use the GPU.
Needs only Python, with gpu_probe_driver.py and gpu_probe_machine.py in the same folder. Each part runs in a separate
process with a deadline; a part that fails or hangs is reported, and the others continue. The exit code is 1 if a
required part fails.
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
from collections.abc import Callable
from typing import Any

from gpu_probe_driver import Cuda, CudaError, microseconds
from gpu_probe_machine import machine

ATTRIBUTES = {
    "multiprocessors": 16,
    "copy engines": 40,
    "unified addressing": 41,
    "capability major": 75,
    "capability minor": 76,
    "host register": 99,
    "host pointer is device pointer": 91,
    "memory pools": 115,
    "stream values of 64 bits": 122,
    "events between processes": 125,
}
# -- parts, each in a process ------------------------------------------------------------------------------------------


def part_device(path: str, megabytes: int) -> dict[str, Any]:
    start = time.perf_counter()
    cuda = Cuda(path)
    found: dict[str, Any] = {"start of CUDA, s": round(time.perf_counter() - start, 3)}
    version, name, uuid = ctypes.c_int(), ctypes.create_string_buffer(100), ctypes.create_string_buffer(16)
    cuda.call("cuDriverGetVersion", ctypes.byref(version))
    cuda.call("cuDeviceGetName", name, ctypes.c_int(100), cuda.device)
    cuda.call("cuDeviceGetUuid_v2", uuid, cuda.device)
    total = ctypes.c_size_t()
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(total), cuda.device)
    found |= {"name": name.value.decode(), "CUDA of the driver": version.value, "UUID": uuid.raw.hex()}
    found["memory, MiB"] = total.value >> 20
    for label, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        code = cuda.library.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(number), cuda.device)
        found[label] = value.value if code == 0 else f"error {code}"
    return found


def part_copies(path: str, megabytes: int) -> dict[str, Any]:
    """Measure copy rates in GB/s, counting each copied byte once."""
    cuda = Cuda(path)
    size = megabytes << 20
    remote, other = cuda.allocate(size), cuda.allocate(size)
    one, two = cuda.stream(), cuda.stream()
    pinned, second = cuda.pinned(size), cuda.pinned(size)
    pageable = ctypes.create_string_buffer(size)

    def rate(*copies: Callable[[], None], times: int = 5) -> float:
        best = 0.0
        for _ in range(times + 1):
            start = time.perf_counter()
            for copy in copies:
                copy()
            cuda.wait(one, two)
            best = max(best, size / (time.perf_counter() - start) / 1e9)
        return round(best, 2)

    found = {
        "device to host, pinned": rate(lambda: cuda.down(pinned, remote, size, one)),
        "host to device, pinned": rate(lambda: cuda.up(remote, pinned, size, one)),
        "both at once, each": rate(
            lambda: cuda.down(pinned, remote, size, one), lambda: cuda.up(other, second, size, two)
        ),
        "device to host, pageable": rate(lambda: cuda.down(pageable, remote, size, one), times=2),
        "device to device": rate(lambda: cuda.call("cuMemcpyDtoDAsync_v2", other, remote, ctypes.c_size_t(size), one)),
    }
    piece = 4 << 20

    def in_pieces() -> None:
        for begin in range(0, size, piece):
            host = ctypes.c_void_p((pinned.value or 0) + begin)
            cuda.down(host, ctypes.c_uint64(remote.value + begin), min(piece, size - begin), one)

    found["device to host, pinned, in pieces of 4 MiB"] = rate(in_pieces)
    return found


def part_calls(path: str, megabytes: int) -> dict[str, Any]:
    """Measure the host time of driver calls in microseconds, starting with Python's own overhead."""
    cuda = Cuda(path)
    one, two, event, version = cuda.stream(), cuda.stream(), cuda.event(), ctypes.c_int()
    mode, popped = ctypes.c_int(2), ctypes.c_void_p()
    pinned, remote = cuda.pinned(4096), cuda.allocate(4096)

    def turn() -> None:
        cuda.call("cuCtxPushCurrent_v2", cuda.context)
        cuda.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        cuda.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        cuda.call("cuCtxPopCurrent_v2", ctypes.byref(popped))

    def small_copy() -> None:
        cuda.down(pinned, remote, 4, one)
        cuda.wait(one)

    def memory(size: int) -> None:
        address = cuda.allocate(size)
        cuda.call("cuMemFree_v2", address)

    def pin(size: int) -> None:
        address = cuda.pinned(size)
        cuda.call("cuMemFreeHost", address)

    cuda.call("cuEventRecord", event, one)
    return {
        "a call that does nothing": microseconds(lambda: cuda.call("cuDriverGetVersion", ctypes.byref(version))),
        "event record": microseconds(lambda: cuda.call("cuEventRecord", event, one)),
        "event query": microseconds(lambda: cuda.library.cuEventQuery(event)),
        "stream wait": microseconds(lambda: cuda.call("cuStreamWaitEvent", two, event, ctypes.c_uint(0))),
        "context and capture mode, there and back": microseconds(turn),
        "submission of a copy of 4 bytes": microseconds(lambda: cuda.down(pinned, remote, 4, one)),
        "copy of 4 bytes to the host, until it is there": microseconds(small_copy),
        "allocation of 4 MiB and its end": microseconds(lambda: memory(4 << 20), 20),
        "pinning of 4 MiB and its end": microseconds(lambda: pin(4 << 20), 10),
    }


class Handle(ctypes.Structure):
    """CUDA IPC handle (64 bytes), which C functions take by value."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


def handle_of(text: str) -> Handle:
    return Handle.from_buffer_copy(bytes.fromhex(text))


def text_of(handle: Handle) -> str:
    return ctypes.string_at(ctypes.byref(handle), 64).hex()


class Peer:
    """Second process of a measurement. It exchanges lines of text with the first process."""

    def __init__(self, part: str, path: str) -> None:
        command = [sys.executable, __file__, "--driver", path, "--part", part]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def send(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def receive(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        if not line or line.startswith("no "):
            raise CudaError(f"the other process: {line or 'ended'}")
        return line


def show(text: str) -> None:
    print(text, flush=True)


SHARED = 2 << 20
TURNS = 200


def part_memory(path: str, megabytes: int) -> dict[str, Any]:
    """Check that another process can read and write this process's GPU memory."""
    cuda = Cuda(path)
    stream, memory, handle = cuda.stream(), cuda.allocate(SHARED), Handle()
    local = (ctypes.c_char * SHARED)(*(bytes(range(256)) * (SHARED // 256)))
    cuda.up(memory, local, SHARED, stream)
    cuda.wait(stream)
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), memory)
    peer = Peer("memory peer", path)
    peer.send(text_of(handle))
    read = peer.receive()
    cuda.down(local, memory, SHARED, stream)
    cuda.wait(stream)
    peer.send("end")
    return {"read by another process": read == "same", "written by it": local.raw == b"\x2a" * SHARED}


def part_memory_peer(path: str, megabytes: int) -> None:
    cuda = Cuda(path)
    stream, memory, found = cuda.stream(), ctypes.c_uint64(), ctypes.create_string_buffer(SHARED)
    cuda.call("cuIpcOpenMemHandle_v2", ctypes.byref(memory), handle_of(input()), ctypes.c_uint(1))
    cuda.down(found, memory, SHARED, stream)
    cuda.wait(stream)
    same = found.raw == bytes(range(256)) * (SHARED // 256)
    cuda.up(memory, ctypes.create_string_buffer(b"\x2a" * SHARED, SHARED), SHARED, stream)
    cuda.wait(stream)
    show("same" if same else "different")
    input()
    cuda.call("cuIpcCloseMemHandle", memory)


def part_events(path: str, megabytes: int) -> dict[str, Any]:
    """Measure two processes that alternate by waiting for each other's CUDA events.

    In each turn, a process copies 4 KiB and records an event.
    """
    cuda = Cuda(path)
    stream, local, handle, remote = cuda.stream(), cuda.event(2 | 4), Handle(), ctypes.c_void_p()
    here, target = cuda.allocate(4096), cuda.allocate(4096)
    cuda.call("cuEventRecord", local, stream)
    cuda.call("cuIpcGetEventHandle", ctypes.byref(handle), local)
    peer = Peer("events peer", path)
    peer.send(text_of(handle))
    cuda.call("cuIpcOpenEventHandle", ctypes.byref(remote), handle_of(peer.receive()))
    found: dict[str, Any] = {}
    for label in ("first turns, us each", "later turns, us each"):
        start = time.perf_counter()
        for _ in range(TURNS):
            cuda.call("cuMemcpyDtoDAsync_v2", target, here, ctypes.c_size_t(4096), stream)
            cuda.call("cuEventRecord", local, stream)
            peer.send("recorded")
            peer.receive()
            cuda.call("cuStreamWaitEvent", stream, remote, ctypes.c_uint(0))
        cuda.wait(stream)
        found[label] = round(1e6 * (time.perf_counter() - start) / TURNS, 1)
    return found


def part_events_peer(path: str, megabytes: int) -> None:
    cuda = Cuda(path)
    stream, local, handle, peer = cuda.stream(), cuda.event(2 | 4), Handle(), ctypes.c_void_p()
    here, remote = cuda.allocate(4096), cuda.allocate(4096)
    cuda.call("cuIpcOpenEventHandle", ctypes.byref(peer), handle_of(input()))
    cuda.call("cuEventRecord", local, stream)
    cuda.call("cuIpcGetEventHandle", ctypes.byref(handle), local)
    show(text_of(handle))
    for _ in range(2 * TURNS):
        input()
        cuda.call("cuStreamWaitEvent", stream, peer, ctypes.c_uint(0))
        cuda.call("cuMemcpyDtoDAsync_v2", remote, here, ctypes.c_size_t(4096), stream)
        cuda.call("cuEventRecord", local, stream)
        show("recorded")
    cuda.wait(stream)


def part_values(path: str, megabytes: int) -> dict[str, Any]:
    """Measure two processes that take turns by waiting for values in shared memory on the GPU.

    The measurement shows whether a stream that waits for a value lets another process use the GPU.
    """
    cuda = Cuda(path)
    stream, memory, handle = cuda.stream(), cuda.allocate(SHARED), Handle()
    cuda.up(memory, ctypes.create_string_buffer(64), 64, stream)
    cuda.wait(stream)
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), memory)
    peer = Peer("values peer", path)
    peer.send(text_of(handle))
    peer.receive()
    peer.send("go")
    return {"turns, us each": _turns_by_values(cuda, stream, memory.value, 0, 1)}


def part_values_peer(path: str, megabytes: int) -> None:
    cuda = Cuda(path)
    stream, memory = cuda.stream(), ctypes.c_uint64()
    cuda.call("cuIpcOpenMemHandle_v2", ctypes.byref(memory), handle_of(input()), ctypes.c_uint(1))
    show("ready")
    input()
    _turns_by_values(cuda, stream, memory.value, 1, 0)


def _turns_by_values(cuda: Cuda, stream: ctypes.c_void_p, base: int, local: int, peer: int) -> float:
    start = time.perf_counter()
    for turn in range(1, TURNS + 1):
        here, remote = ctypes.c_uint64(base + 4 * local), ctypes.c_uint64(base + 4 * peer)
        at_least = ctypes.c_uint(0)
        cuda.call("cuStreamWriteValue32_v2", stream, here, ctypes.c_uint(turn), ctypes.c_uint(0))
        cuda.call("cuStreamWaitValue32_v2", stream, remote, ctypes.c_uint(turn), at_least)
    cuda.wait(stream)
    return round(1e6 * (time.perf_counter() - start) / TURNS, 1)


PARTS: dict[str, Callable[[str, int], Any]] = {
    "device": part_device,
    "copies, GB/s": part_copies,
    "calls, us": part_calls,
    "memory of another process": part_memory,
    "events of another process": part_events,
    "values in memory of another process": part_values,
}
PEERS = {"memory peer": part_memory_peer, "events peer": part_events_peer, "values peer": part_values_peer}
NEEDED = ("device", "copies, GB/s", "calls, us")


def run_part(name: str, path: str, megabytes: int, seconds: float) -> Any:
    argv = [sys.executable, __file__, "--driver", path, "--megabytes", str(megabytes), "--part", name]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    # Kill the whole session, including the peer process.
    killer = threading.Timer(seconds, lambda: os.killpg(process.pid, 9))
    killer.start()
    out, complaints = process.communicate()
    late = not killer.is_alive() and process.returncode != 0
    killer.cancel()
    lines = out.strip().splitlines()
    if process.returncode == 0 and lines:
        return json.loads(lines[-1])
    why = (complaints.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
    return {"failed": f"not done within {seconds:g} s" if late else why}


def main() -> int:
    parser = argparse.ArgumentParser(description="What the GPU here and its driver are like.")
    parser.add_argument("--driver", default="libcuda.so.1", help="default %(default)s")
    parser.add_argument("--megabytes", type=int, default=256, help="of a copy (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each part (default %(default)s)")
    parser.add_argument("--json", help="where the result goes besides")
    parser.add_argument("--part", choices=[*PARTS, *PEERS], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part in PEERS:
        try:
            PEERS[args.part](args.driver, args.megabytes)
        except Exception as error:
            show(f"no {type(error).__name__}: {error}")
            return 1
        return 0
    if args.part:
        print(json.dumps(PARTS[args.part](args.driver, args.megabytes)))
        return 0
    found: dict[str, Any] = {"machine": machine()}
    for name in PARTS:
        found[name] = run_part(name, args.driver, args.megabytes, args.seconds)
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text + "\n")
    return int(any("failed" in found[name] for name in NEEDED))


if __name__ == "__main__":
    sys.exit(main())
