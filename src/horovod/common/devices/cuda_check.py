"""Check that CUDA initializes on this host and that two processes can share memory of the first GPU.

The check runs this file as a program in separate processes, so that CUDA is not initialized in the caller, which can
still fork. ``cuda_check.py own DRIVER`` initializes CUDA, allocates memory, writes a pattern and prints a handle of the
memory. It then waits until its stdin is closed. Meanwhile, ``cuda_check.py open DRIVER HANDLE`` in another process
reads the memory. Each process prints its results as lines: ``ok ...``, or ``no`` and the reason. As a program, this
file needs only the standard library.
"""

from __future__ import annotations

import ctypes
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

# The code below runs in separate processes.

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
    """Allocate memory and keep it until stdin is closed (`cuda_check.py own`)."""
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
    """Read the memory exported by the other test process, and check its contents (`cuda_check.py open`)."""
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


# The code below runs in the process that requests the self-test.

SECONDS: Final = 60.0


class Result(NamedTuple):
    """Results of the CUDA self-test. Each field contains the reason why a feature does not work, or "" if it works."""

    cuda: str = ""
    """Reason why CUDA does not start."""
    ipc: str = ""
    """Reason why a process cannot read the GPU memory of another process."""


def try_cuda(driver: str, seconds: float = SECONDS) -> Result:
    """Run the CUDA self-test in separate processes. Never raises.

    The test takes a few seconds and a few hundred MB of the first GPU's memory.
    """
    deadline = time.monotonic() + seconds
    try:
        owner = _start("own", driver)
    except OSError as error:
        return Result(cuda=f"it cannot be tried: {error}")
    try:
        started = _line(owner, deadline)
        if started != "ok started":
            return Result(cuda=_reason(started))
        handle = _line(owner, deadline)
        if not handle.startswith("ok "):
            return Result(ipc=_reason(handle))
        other = _start("open", driver, handle.removeprefix("ok "))
        try:
            answer = _line(other, deadline)
        finally:
            _end(other, deadline)
        return Result(ipc="" if answer == "ok read" else _reason(answer))
    except OSError as error:
        return Result(ipc=f"it cannot be tried: {error}")
    finally:
        _end(owner, deadline)


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    from horovod.common.contract import boot  # imported here because the program does not need it

    return subprocess.Popen(
        [sys.executable, *boot.standalone_arguments(__file__, *arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


def _line(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Return the next line of a process's output. On a timeout, return "no" followed by the reason."""
    assert process.stdout is not None
    text = b""
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return "no nothing comes of it: it takes longer than it should"
        piece = process.stdout.read(1)
        if not piece:
            return f"no the process that tried it ended with {process.wait()}"
        text += piece
    return text.decode(errors="replace").strip()


def _reason(line: str) -> str:
    return line.removeprefix("no ")[:2000]


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    """End the process by closing its stdin. Kill the process if it hangs in the driver."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    for patience in (max(0.1, min(5.0, deadline - time.monotonic())), 5.0):
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            process.kill()  # SIGKILL has no effect while the process is blocked in the kernel


if __name__ == "__main__":
    main()
