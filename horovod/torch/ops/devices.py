"""Tensors in the memory of a GPU: how their operations are ordered with what the program does on its streams.

The engine begins behind what is on the current stream when an operation is submitted, and ``DeviceWork.wait`` has the
stream that is current then wait for the result. The program itself waits only until the work is launched, unless
HOROVOD_ENABLE_ASYNC_COMPLETION=0 asks for more.

What differs between kinds of devices is in an ``Adapter``.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from horovod._core import DEVICE_CUDA, DEVICE_HIP
from horovod.common.exceptions import HorovodInternalError
from horovod.common.faces import TORCH as face

_raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The handle of a device's current stream, which is asked for at each call: this makes no object, and PyTorch's own
compiler uses it too. PyTorch for CPUs has none."""


class Adapter(Protocol):
    """A kind of device, as PyTorch has it."""

    kind: int
    """DEVICE_* of horovod._core."""

    def current_stream(self, device: torch.device) -> int:
        """The handle of this thread's current stream."""

    def stream(self, device: torch.device) -> Any:
        """This thread's current stream: an object with ``wait_stream(another)``."""

    def is_capturing(self, device: torch.device) -> bool:
        """Is the current stream being captured into a graph?"""

    def another_stream(self, handle: int, device: torch.device) -> Any:
        """The stream with this handle, made by whomever; 0 is the legacy default stream: like ``stream``."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor that the current stream may use."""


class Cuda:
    """NVIDIA's GPUs; with PyTorch for ROCm AMD's, which bear the same names there."""

    kind = DEVICE_HIP if torch.version.hip else DEVICE_CUDA

    def current_stream(self, device: torch.device) -> int:
        if _raw_stream is not None and device.index is not None:
            return _raw_stream(device.index)
        return torch.cuda.current_stream(device).cuda_stream

    def stream(self, device: torch.device) -> Any:
        return torch.cuda.current_stream(device)

    def is_capturing(self, device: torch.device) -> bool:
        # PyTorch can be asked about the current device alone.
        if device.index is None or device.index == torch.cuda.current_device():
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(device):
            return torch.cuda.is_current_stream_capturing()

    def another_stream(self, handle: int, device: torch.device) -> Any:
        # An ExternalStream of 0 would be any one of PyTorch's own.
        return torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)


ADAPTERS: dict[str, Adapter] = {"cuda": Cuda()}
"""By type of device; tensors of others cannot travel."""

_parked: list["DeviceWork"] = []
_parking = threading.Lock()


class DeviceWork:
    """The Work of an operation on a device (horovod/_core.pyi), with the order of streams.

    Keeps the operation's tensors until nothing can use their memory too early.
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
        """Is the result in the device's memory, or will it never be there? ``wait`` tells which."""
        try:
            return self._work.done()
        except HorovodInternalError:
            return True

    def in_use(self) -> bool:
        """May the device still use the tensors' memory?"""
        return self._work.in_use()

    def wait(self, timeout: float = -1.0) -> bool:
        """Until launched; the current stream waits for the result. False: not in so many seconds (negative: for ever).

        Raises ValueError where that is being captured into a graph, which the wait would spoil; HorovodInternalError in
        a forked child, where nothing of the device can be asked.
        """
        if face.forked:
            raise HorovodInternalError(
                f"{self.name}: its result is on {self._device} of the parent process, which a forked child cannot use"
            )
        if self._adapter.is_capturing(self._device):
            raise ValueError(
                f"{self.name}: the current stream is being captured into a graph (torch.cuda.graph), in which the "
                "result of a collective cannot be waited for; call synchronize outside the captured part"
            )
        stream = self._adapter.current_stream(self._device)
        waits = face.job is not None and face.job.waits_for_devices
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
            _sweep(self)  # what was launched goes on for a while
            raise
        if not waits and stream != self._stream and self._tensors is not None:
            # What is freed now may be used again on the stream that it was made for, which does not wait.
            _sweep(self)
            return True
        self._tensors = None
        return True

    def output(self, tail: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The result of an allgather or alltoall: a tensor of shape (sum of ``sizes``, *tail)."""
        out = self._adapter.empty((sum(self.sizes), *tail), dtype, self._device)
        if out.numel() > 0:
            self._work.copy_output(out.data_ptr(), self._adapter.current_stream(self._device))
        return out


def _sweep(*more: DeviceWork) -> None:
    with _parking:  # any thread may wait
        _parked[:] = [work for work in (*_parked, *more) if work.in_use()]


def accepts(tensor: torch.Tensor) -> bool:
    """Can a tensor that is not in the CPU's memory travel?"""
    return tensor.device.type in ADAPTERS


def sender(tensor: torch.Tensor, *others: torch.Tensor | None) -> Callable[..., DeviceWork]:
    """``face.submit`` for tensors on a device. ``others``: what the operation writes to, or reads besides.

    Raises ValueError when one of them is somewhere else.
    """
    device = tensor.device
    for other in others:
        if other is not None and other.device != device:
            raise ValueError(f"the input is on device {device}, the output on {other.device}; accepted are equal ones")
    adapter = ADAPTERS[device.type]
    stream = adapter.current_stream(device)
    tensors = (tensor, others)

    def submit(*arguments: Any) -> DeviceWork:
        work = face.submit(*arguments, device_kind=adapter.kind, device=device.index or 0, stream=stream)
        return DeviceWork(work, adapter, device, stream, tensors)

    return submit


class Streams:
    """Streams on which tensors are made that one operation is to use. As a context: in it the current stream may use
    them, since it waits for the others; and these wait for what it has done, so that memory which is freed meanwhile is
    not used again too early on the stream that it was made for."""

    __slots__ = ("_adapter", "_device", "_noted")

    def __init__(self, device: torch.device) -> None:
        self._adapter = ADAPTERS[device.type]
        self._device = device
        self._noted: dict[int, Any] = {}

    def note(self) -> None:
        """Something has been made on the current one."""
        handle = self._adapter.current_stream(self._device)
        if handle not in self._noted:
            self._noted[handle] = self._adapter.stream(self._device)

    def forget(self) -> None:
        """Starts anew."""
        self._noted.clear()

    def _others(self) -> list[Any]:
        handle = self._adapter.current_stream(self._device)
        return [stream for noted, stream in self._noted.items() if noted != handle]

    def __enter__(self) -> None:
        for other in self._others():
            self._adapter.stream(self._device).wait_stream(other)

    def __exit__(self, *_: object) -> None:
        for other in self._others():
            other.wait_stream(self._adapter.stream(self._device))


def zeros(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A vector on the device, for the current stream."""
    return ADAPTERS[device.type].empty((count,), dtype, device).zero_()


def forget_all() -> None:
    """The job is over. What a device may still use is kept."""
    _sweep()
