"""A device with streams and arrays, through whichever libcuda.so.1 the process finds: as a framework uses it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

ARGUMENTS: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [c_void_p],
    "cuStreamCreateWithPriority": [c_void_p, c_uint, c_int],
    "cuStreamDestroy_v2": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuStreamQuery": [c_void_p],
    "cuEventCreate": [c_void_p, c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuMemAlloc_v2": [c_void_p, c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemsetD8Async": [c_uint64, ctypes.c_ubyte, c_size_t, c_void_p],
}


class CudaError(RuntimeError):
    """A function of the driver gave another number than 0, which is `code`."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} gave {code}")
        self.code = code


class Gpu:
    """The primary context of a device, current on the thread that makes it; a context manager that gives it back."""

    def __init__(self, device: int = 0) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in ARGUMENTS.items():
            getattr(self.library, name).argtypes = arguments
        self.device = device
        self.context = c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", byref(self.context), device)
        self("cuCtxPushCurrent_v2", self.context)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver. Raises CudaError unless it gives 0."""
        if code := getattr(self.library, name)(*arguments):
            raise CudaError(name, code)

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *error: object) -> None:
        self("cuCtxPopCurrent_v2", None)
        self("cuDevicePrimaryCtxRelease_v2", self.device)

    def stream(self, priority: int = 0) -> int:
        """A new stream that does not wait for the legacy one."""
        made = c_void_p()
        self("cuStreamCreateWithPriority", byref(made), 1, priority)
        return made.value or 0

    def finish(self, stream: int) -> None:
        """Waits until all that was submitted to the stream is done."""
        event = c_void_p()
        self("cuEventCreate", byref(event), 2)
        self("cuEventRecord", event, stream)
        self("cuEventSynchronize", event)
        self("cuEventDestroy_v2", event)

    def array(self, data: Any, stream: int = 0) -> DeviceArray:
        """A copy of `data` on the device, made on the stream; as NumPy's `asarray` takes it."""
        made = DeviceArray(self, np.ascontiguousarray(data), stream)
        self("cuMemcpyHtoDAsync_v2", made.address, made.like.ctypes.data, made.like.nbytes, stream)
        return made


class DeviceArray:
    """Contiguous memory of a device with shape and type, which others see by `__cuda_array_interface__` (version 3)."""

    def __init__(self, gpu: Gpu, like: np.ndarray, stream: int) -> None:
        self.gpu, self.like, self.stream = gpu, like, stream
        address = c_uint64()
        gpu("cuMemAlloc_v2", byref(address), max(1, like.nbytes))
        self.address = address.value

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.like.shape,
            "typestr": self.like.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": self.stream or 1,
        }

    def numpy(self, stream: int | None = None) -> np.ndarray:
        """Its values, once all that was submitted to the stream (its own) is done."""
        result = np.empty_like(self.like)
        stream = self.stream if stream is None else stream
        self.gpu("cuMemcpyDtoHAsync_v2", result.ctypes.data, self.address, result.nbytes, stream)
        self.gpu.finish(stream)
        return result

    def free(self) -> None:
        """Gives the memory back; nothing may use it any more."""
        self.gpu("cuMemFree_v2", self.address)
