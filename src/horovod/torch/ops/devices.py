"""Collectives on tensors in GPU memory, ordered with the program's work on its streams.

An operation starts after the work that precedes its submission on the current stream. ``DeviceWork.wait`` makes the
current stream wait for the result, and blocks the host only until the operation is launched. With
HOROVOD_ENABLE_ASYNC_COMPLETION=0, the host waits until the operation is complete.

An ``Adapter`` contains the code that depends on the kind of device.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from horovod._core import DEVICE_CUDA
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import TORCH as frontend

_raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""Function that returns the handle of a device's current stream, or None in PyTorch builds for CPUs only.

Each operation calls it, because it is fast: it creates no object. PyTorch's own compiler uses it too.
"""


class Adapter(Protocol):
    """PyTorch functions for one kind of device, such as those for its streams and its memory."""

    kind: int
    """Kind of device, a ``DEVICE_*`` constant of ``horovod._core``."""

    def current_stream(self, device: torch.device) -> int:
        """Return the handle of this thread's current stream."""

    def stream(self, device: torch.device) -> Any:
        """Return this thread's current stream. The object has the method ``wait_stream(another)``."""

    def is_capturing(self, device: torch.device) -> bool:
        """Return True if a CUDA graph is being captured on the current stream."""

    def another_stream(self, handle: int, device: torch.device) -> Any:
        """Wrap an existing stream handle, which can come from any library.

        0 is the legacy default stream.
        """

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return an uninitialized tensor, allocated for the current stream."""


class Cuda:
    """NVIDIA GPUs."""

    kind = DEVICE_CUDA

    def current_stream(self, device: torch.device) -> int:
        if _raw_stream is not None and device.index is not None:
            return _raw_stream(device.index)
        return torch.cuda.current_stream(device).cuda_stream

    def stream(self, device: torch.device) -> Any:
        return torch.cuda.current_stream(device)

    def is_capturing(self, device: torch.device) -> bool:
        # Switch to the tensor's device if necessary, because PyTorch can query only the current device.
        if device.index is None or device.index == torch.cuda.current_device():
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(device):
            return torch.cuda.is_current_stream_capturing()

    def another_stream(self, handle: int, device: torch.device) -> Any:
        # Handle 0 separately, because ExternalStream(0) would return one of PyTorch's pooled streams instead of the
        # default stream.
        return torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)


ADAPTERS: dict[str, Adapter] = {} if torch.version.hip else {"cuda": Cuda()}
"""Adapters by device type. Tensors on other devices, and on AMD GPUs (also called "cuda"), are rejected."""

_parked: list["DeviceWork"] = []
_parking = threading.Lock()


class DeviceWork:
    """Work of a device operation. Waiting for it also synchronizes streams.

    ``_core.pyi`` describes the interface of Work. A DeviceWork keeps the operation's tensors alive until their memory
    can be reused safely.
    """

    __slots__ = ("_adapter", "_device", "_stream", "_tensors", "_work")

    def __init__(self, work: Any, adapter: Adapter, device: torch.device, stream: int, tensors: Any) -> None:
        self._work = work
        self._adapter = adapter
        self._device = device
        self._stream = stream
        self._tensors = tensors

    @property
    def name(self) -> str:
        return self._work.name

    @property
    def sizes(self) -> list[int]:
        return self._work.sizes

    def done(self) -> bool:
        """Return True if the device has written the result, or the operation has failed.

        ``wait`` raises the error of a failed operation.
        """
        try:
            return self._work.done()
        except HorovodInternalError:
            return True

    def in_use(self) -> bool:
        """Return True if the device can still access the memory of the operation's tensors."""
        return self._work.in_use()

    def wait(self, timeout: float = -1.0) -> bool:
        """Wait until the operation is launched, and make the current stream wait for its result.

        Args:
            timeout (float): Seconds; a negative value waits without limit.

        Returns:
            bool: False if ``timeout`` has passed.

        Raises:
            ValueError: If the current stream is being captured into a graph, which cannot contain this wait.
            HorovodInternalError: If the operation failed, or this is a forked child, which cannot use the device.
        """
        if frontend.forked:
            raise HorovodInternalError(
                f"{self.name}: the result is on {self._device} of the parent process, which a forked child cannot use; "
                "wait for it in the parent"
            )
        if self._adapter.is_capturing(self._device):
            raise ValueError(
                f"{self.name}: cannot wait for the result of a collective while the current stream is being captured "
                "into a graph (torch.cuda.graph); call synchronize outside of the captured part"
            )
        stream = self._adapter.current_stream(self._device)
        waits = frontend.job is not None and frontend.job.waits_for_devices
        try:
            deadline = time.monotonic() + timeout if waits and timeout >= 0 else math.inf
            if not self._work.wait(timeout):
                return False
            while waits and not self._work.done():
                if time.monotonic() >= deadline:
                    return False
                time.sleep(50e-6)
            self._work.order(stream)
        except HorovodInternalError:
            # Keep the tensors of the failed operation alive, because kernels that were already launched can still be
            # running.
            _sweep(self)
            raise
        if not waits and stream != self._stream and self._tensors is not None:
            # PyTorch reuses freed memory on the stream that allocated it, and that stream does not wait for the
            # operation. Keep the tensors alive until the device has finished.
            _sweep(self)
            return True
        self._tensors = None
        return True

    def output(self, tail: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return the result of an allgather or alltoall, a tensor of shape ``(sum(sizes), *tail)``."""
        out = self._adapter.empty((sum(self.sizes), *tail), dtype, self._device)
        if out.numel() > 0:
            self._work.copy_output(out.data_ptr(), self._adapter.current_stream(self._device))
        return out


def _sweep(*more: DeviceWork) -> None:
    # Take the lock, because several threads can wait for operations and update this list at the same time.
    with _parking:
        _parked[:] = [work for work in (*_parked, *more) if work.in_use()]


def accepts(tensor: torch.Tensor) -> bool:
    """Return True if operations support the device of a tensor that is not in CPU memory."""
    return tensor.device.type in ADAPTERS


def supported() -> str:
    """Return a description of the supported device types, for error messages."""
    rocm = " (AMD GPUs are not supported: send tensor.cpu())" if torch.version.hip else ""
    return f"{' or '.join(('cpu', *ADAPTERS))}{rocm}"


def sender(tensor: torch.Tensor, *others: torch.Tensor | None) -> Callable[..., DeviceWork]:
    """Return a replacement for the engine's ``submit`` that supports tensors on a device.

    ``others`` are the other tensors that the operation reads or writes.

    Raises:
        ValueError: If one of ``others`` is on another device.
    """
    device = tensor.device
    for other in others:
        if other is not None and other.device != device:
            raise ValueError(f"input and output must be on the same device, got {device} and {other.device}")
    adapter = ADAPTERS[device.type]
    stream = adapter.current_stream(device)
    tensors = (tensor, others)

    def submit(*arguments: Any) -> DeviceWork:
        work = frontend.submit(*arguments, device_kind=adapter.kind, device=device.index or 0, stream=stream)
        return DeviceWork(work, adapter, device, stream, tensors)

    return submit


class Streams:
    """Streams on which the input tensors of one operation were produced.

    Entering the context makes the current stream wait for the recorded streams, so that the body can use their tensors.
    Leaving it makes the recorded streams wait for the current stream, so that they can safely reuse memory that the
    body has freed.
    """

    __slots__ = ("_adapter", "_device", "_noted")

    def __init__(self, device: torch.device) -> None:
        self._adapter = ADAPTERS[device.type]
        self._device = device
        self._noted: dict[int, Any] = {}

    def note(self) -> None:
        """Record that a tensor was produced on the current stream."""
        handle = self._adapter.current_stream(self._device)
        if handle not in self._noted:
            self._noted[handle] = self._adapter.stream(self._device)

    def forget(self) -> None:
        """Forget all recorded streams."""
        self._noted.clear()

    def _other_streams(self) -> list[Any]:
        handle = self._adapter.current_stream(self._device)
        return [stream for noted, stream in self._noted.items() if noted != handle]

    def __enter__(self) -> None:
        for other in self._other_streams():
            self._adapter.stream(self._device).wait_stream(other)

    def __exit__(self, *_: object) -> None:
        for other in self._other_streams():
            other.wait_stream(self._adapter.stream(self._device))


def zeros(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a vector of zeros on the device, allocated for the current stream."""
    return ADAPTERS[device.type].empty((count,), dtype, device).zero_()


def forget_all() -> None:
    """Release resources at the end of the job, but keep alive any tensors that a device can still access."""
    _sweep()
