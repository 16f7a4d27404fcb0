"""Tensors on a simulated GPU: PyTorch for CPUs computes where the simulated driver (tests/simulated/cuda) keeps the
memory of its device, and the tensors' addresses are those of the device, which the CPU cannot touch.

PyTorch does not know of the device's streams, so a test calls ``values`` to see what a stream has written.
"""

import ctypes
import math
import os
from typing import Any

import torch

from horovod._core import DEVICE_CUDA
from horovod.torch.ops import devices

_DEVICE = torch.device("cuda", 0)


class Driver:
    """The simulated driver of this process, as a framework uses it."""

    def __init__(self) -> None:
        library = ctypes.CDLL(os.environ["HOROVOD_CUDA_LIBRARY"])
        library.simcuda_at.restype = ctypes.c_void_p
        self._library = library
        self._check(library.cuInit(0))
        context = ctypes.c_void_p()
        self._check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._check(library.cuCtxPushCurrent_v2(context))
        self.stream = ctypes.c_void_p()
        self._check(library.cuStreamCreateWithPriority(ctypes.byref(self.stream), 1, 0))

    def _check(self, code: int) -> None:
        assert code == 0, f"CUDA error {code}"

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """(address on the device, where the CPU finds the memory)."""
        address = ctypes.c_uint64()
        self._check(self._library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1))))
        alias = self._library.simcuda_at(address, ctypes.c_size_t(max(nbytes, 1)))
        return address.value, alias

    def wait(self) -> None:
        """Until the stream has come to its end."""
        event = ctypes.c_void_p()
        self._check(self._library.cuEventCreate(ctypes.byref(event), 2))
        self._check(self._library.cuEventRecord(event, self.stream))
        while (code := self._library.cuEventQuery(event)) == 600:
            pass
        self._check(code)
        self._check(self._library.cuEventDestroy_v2(event))


class OnGpu(torch.Tensor):
    """A tensor of the simulated GPU. What is computed from it is there too."""

    address: int

    @property
    def is_cpu(self) -> bool:
        return False

    @property
    def device(self) -> torch.device:
        return _DEVICE

    def data_ptr(self) -> int:
        return self.address

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.empty_like, torch.zeros_like):
            made = empty(args[0].shape, args[0].dtype)
            return made.zero_() if function is torch.zeros_like else made
        if function is torch.Tensor.new_empty:
            return empty(args[1], args[0].dtype)
        if function is torch.Tensor.detach:
            return args[0]
        adapter().driver.wait()  # PyTorch would compute on the stream
        made = super().__torch_function__(function, types, args, kwargs or {})
        return gpu(made.as_subclass(torch.Tensor)) if isinstance(made, cls) and not hasattr(made, "address") else made


class Adapter:
    """In the place of that for CUDA."""

    kind = DEVICE_CUDA

    def __init__(self) -> None:
        self.driver = Driver()

    def current_stream(self, device: torch.device) -> int:
        return self.driver.stream.value or 0

    def empty(self, shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return empty(shape, dtype)


def adapter() -> Adapter:
    """This process's, in use from the first call on."""
    present = devices.ADAPTERS["cuda"]
    if not isinstance(present, Adapter):
        devices.ADAPTERS["cuda"] = present = Adapter()
    return present


def empty(shape: Any, dtype: torch.dtype = torch.float32) -> OnGpu:
    """Memory of the GPU."""
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    address, alias = adapter().driver.allocate(nbytes)
    memory = (ctypes.c_char * max(nbytes, 1)).from_address(alias)
    tensor = torch.frombuffer(memory, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)
    on_gpu = tensor.view(shape).as_subclass(OnGpu)
    on_gpu.address = address
    return on_gpu


def gpu(values: torch.Tensor) -> OnGpu:
    """A copy on the GPU."""
    on_gpu = empty(values.shape, values.dtype)
    on_gpu.as_subclass(torch.Tensor).copy_(values)
    return on_gpu


def values(tensor: torch.Tensor) -> torch.Tensor:
    """What the current stream sees, as a tensor of the CPU."""
    assert isinstance(tensor, OnGpu), type(tensor)
    adapter().driver.wait()
    return tensor.as_subclass(torch.Tensor).clone()
