"""ctypes interface to the CUDA driver API, for gpu_probe.py and nccl_probe.py."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

NOT_YET = 600


class CudaError(Exception):
    pass


class Cuda:
    """CUDA driver API with the first GPU's primary context, which is made current in the creating thread."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.call("cuInit", ctypes.c_uint(0))
        self.device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxPushCurrent_v2", self.context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise CudaError(f"{name} gave {code}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def pinned(self, size: int) -> ctypes.c_void_p:
        address = ctypes.c_void_p()
        self.call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(1), ctypes.c_int(0))
        return stream

    def event(self, flags: int = 2) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(flags))
        return event

    def wait(self, *streams: ctypes.c_void_p, seconds: float = 20.0) -> None:
        """Wait until the streams are idle. Raise CudaError if they are still busy after `seconds`."""
        deadline = time.monotonic() + seconds
        for stream in streams:
            event = self.event()
            self.call("cuEventRecord", event, stream)
            while (code := self.library.cuEventQuery(event)) == NOT_YET:
                if time.monotonic() > deadline:
                    raise CudaError(f"a stream has not come to its end within {seconds:g} s")
            if code:
                raise CudaError(f"cuEventQuery gave {code}")

    def up(self, target: ctypes.c_uint64, host: Any, size: int, stream: ctypes.c_void_p) -> None:
        self.call("cuMemcpyHtoDAsync_v2", target, host, ctypes.c_size_t(size), stream)

    def down(self, host: Any, source: ctypes.c_uint64, size: int, stream: ctypes.c_void_p) -> None:
        self.call("cuMemcpyDtoHAsync_v2", host, source, ctypes.c_size_t(size), stream)


def microseconds(run: Callable[[], Any], times: int = 300) -> float:
    """Return the median time per call of a function, in microseconds."""
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        durations.append(time.perf_counter() - start)
    return round(1e6 * statistics.median(durations), 2)
