"""Self-test on the first GPU, which checks that CUDA starts and that two processes can share GPU memory.

This file is a program that imports nothing from this package. `trial.py own DRIVER` initializes CUDA, allocates memory,
writes a pattern and prints a handle of the memory. It then waits until its stdin is closed. Meanwhile, `trial.py open
DRIVER HANDLE` in another process reads the memory. Each process prints its results as lines: `ok ...`, or `no` and the
reason. Only these processes initialize CUDA, so the caller can still fork.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

SIZE = 2 << 20  # bytes to allocate; smaller allocations can share a memory block with others
_HANDLE = 64
_LAZY_PEER_ACCESS = 1


class _IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * _HANDLE)]


class _TrialError(Exception):
    pass


class _Cuda:
    """Wrapper of the CUDA driver API. It makes the context of the first GPU current on this thread."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise _TrialError(f"{path} cannot be loaded: {error}") from None
        self.call("cuInit", ctypes.c_uint(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a driver function. Raises _TrialError unless it succeeds."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise _TrialError(f"the driver has no {name}") from None
        function.restype = ctypes.c_int
        code = function(*arguments)
        if code:
            raise _TrialError(f"{name} answers {self._name(code)}")

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        except AttributeError:
            pass
        return f"{text.value.decode(errors='replace')} ({code})" if text.value else f"error {code}"

    def finish(self) -> None:
        """Wait until all work in the default stream has completed."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(2))
        self.call("cuEventRecord", event, ctypes.c_void_p())
        self.call("cuEventSynchronize", event)


def _pattern() -> bytes:
    return bytes(range(256)) * (SIZE // 256)


def own(driver: str) -> None:
    """Allocate memory and keep it until stdin is closed (`trial.py own`)."""
    cuda = _Cuda(driver)
    print("ok started", flush=True)
    address, handle, pattern = ctypes.c_uint64(), _IpcHandle(), _pattern()
    cuda.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE))
    cuda.call("cuMemcpyHtoDAsync_v2", address, pattern, ctypes.c_size_t(SIZE), ctypes.c_void_p())
    cuda.finish()
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
    print("ok", ctypes.string_at(ctypes.byref(handle), _HANDLE).hex(), flush=True)
    sys.stdin.read()
    cuda.call("cuMemFree_v2", address)


def open_it(driver: str, text: str) -> None:
    """Read the memory exported by the other test process, and check its contents (`trial.py open`)."""
    cuda = _Cuda(driver)
    address, found = ctypes.c_uint64(), ctypes.create_string_buffer(SIZE)
    handle = _IpcHandle.from_buffer_copy(bytes.fromhex(text))
    cuda.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(_LAZY_PEER_ACCESS))
    cuda.call("cuMemcpyDtoHAsync_v2", found, address, ctypes.c_size_t(SIZE), ctypes.c_void_p())
    cuda.finish()
    same = found.raw == _pattern()
    cuda.call("cuIpcCloseMemHandle", address)
    print("ok read" if same else "no the memory of another process was opened, and other bytes were read", flush=True)


def main() -> None:
    """Run one process of the self-test, selected by the arguments `own DRIVER` or `open DRIVER HANDLE`."""
    parts: dict[str, Callable[..., None]] = {"own": own, "open": open_it}
    try:
        parts[sys.argv[1]](*sys.argv[2:])
    except _TrialError as error:
        print("no", error, flush=True)


if __name__ == "__main__":
    main()
