"""Tensors on a simulated GPU.

PyTorch for CPUs computes on the memory where the simulated driver (tests/simulated/cuda) keeps its device memory.
The tensors' addresses are device addresses, which the CPU cannot access.

PyTorch computes immediately, once earlier work on the current stream is done. So it sees what an infinitely fast
GPU would see, and a stream that does not wait for an operation sees old values. Like PyTorch's allocator, this one
gives freed memory to the next tensor at once. Mixing CPU and GPU tensors in one call raises an error, as on a real
device.

``present()``: a context in which ``device="cuda"`` means this device.
"""

import bisect
import contextlib
import ctypes
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from horovod._core import DEVICE_CUDA
from horovod.torch.ops import devices

_DEVICE = torch.device("cuda", 0)
_GRAIN = 512  # bytes; sizes are rounded up to a multiple of this, as in PyTorch


class Stream:
    """A stream of the simulated device."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self.handle = ctypes.c_void_p()
        driver.check(driver.library.cuStreamCreateWithPriority(ctypes.byref(self.handle), 1, 0))

    @property
    def cuda_stream(self) -> int:
        return self.handle.value or 0

    def wait_stream(self, other: "Stream") -> None:
        """Make later work on this stream wait for the current work of ``other``."""
        event = self._driver.record(other)
        self._driver.check(self._driver.library.cuStreamWaitEvent(self.handle, event, 0))

    def synchronize(self) -> None:
        """Sleep until the stream's work is done.

        Polling would slow down the stream's thread and other ranks on a busy machine.
        """
        event = self._driver.record(self)
        self._driver.check(self._driver.library.cuEventSynchronize(event))
        self._driver.check(self._driver.library.cuEventDestroy_v2(event))

    def occupy(self, done: threading.Event) -> None:
        """Block later work on the stream until ``done`` is set."""
        self._enqueue(_READY(lambda _: int(done.is_set())), _WORK(lambda _: None))

    def later(self, before: Callable[[], None], tensor: torch.Tensor, new: torch.Tensor) -> None:
        """Queue a write of ``new`` into ``tensor``, preceded by ``before()``."""
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
            to = torch.Tensor.data_ptr(tensor)

        def write(_: Any) -> None:
            before()
            ctypes.memmove(to, new.data_ptr(), new.nbytes)

        self._enqueue(ctypes.cast(None, _READY), _WORK(write))

    def _enqueue(self, ready: Any, work: Any) -> None:
        self._driver.kept.append((ready, work))
        self._driver.library.simcuda_enqueue(self.handle, work, None, ready)


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_READY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Driver:
    """The simulated driver of this process, as used by a framework."""

    def __init__(self) -> None:
        self.library = library = ctypes.CDLL(os.environ["HOROVOD_CUDA_LIBRARY"])
        library.simcuda_at.restype = ctypes.c_void_p
        self.kept: list[Any] = []
        self.check(library.cuInit(0))
        context = ctypes.c_void_p()
        self.check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(library.cuCtxPushCurrent_v2(context))
        self.stream = Stream(self)  # the current stream
        self._free: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._addresses: dict[int, tuple[int, int]] = {}  # size in bytes and device address by CPU address
        self._places: list[int] = []  # sorted CPU addresses

    def check(self, code: int) -> None:
        assert code == 0, f"CUDA error {code}"

    def set(self, knob: str, value: int) -> None:
        """Set a knob of tests/simulated/cuda/knobs.h."""
        self.check(self.library.simcuda_set(knob.encode(), ctypes.c_int64(value)))

    def record(self, stream: Stream) -> ctypes.c_void_p:
        """Record an event after the current work of the stream."""
        event = ctypes.c_void_p()
        self.check(self.library.cuEventCreate(ctypes.byref(event), 2))
        self.check(self.library.cuEventRecord(event, stream.handle))
        return event

    def allocate(self, nbytes: int) -> Any:
        """Allocate device memory; return it as an array of bytes that the CPU can access."""
        nbytes = -(-max(nbytes, 1) // _GRAIN) * _GRAIN
        free = self._free.setdefault((nbytes, self.stream.cuda_stream), [])  # reused on the same stream only
        if free:
            address, alias = free.pop()
        else:
            place = ctypes.c_uint64()
            self.check(self.library.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(nbytes)))
            address, alias = place.value, self.library.simcuda_at(place, ctypes.c_size_t(nbytes))
            self._addresses[alias] = address, nbytes
            bisect.insort(self._places, alias)
        memory = (ctypes.c_char * nbytes).from_address(alias)
        weakref.finalize(memory, free.append, (address, alias)).atexit = False
        return memory

    def address_of(self, pointer: int) -> int | None:
        """Return the device address of a CPU pointer."""
        at = bisect.bisect_right(self._places, pointer) - 1
        if at >= 0:
            address, nbytes = self._addresses[self._places[at]]
            if pointer < self._places[at] + nbytes:
                return address + pointer - self._places[at]
        return None


class Adapter:
    """Replacement of the CUDA adapter."""

    kind = DEVICE_CUDA

    def __init__(self) -> None:
        self.driver = Driver()

    def current_stream(self, device: torch.device) -> int:
        return self.driver.stream.cuda_stream

    def stream(self, device: torch.device) -> Stream:
        return self.driver.stream

    def is_capturing(self, device: torch.device) -> bool:
        status = ctypes.c_int()
        self.driver.check(self.driver.library.cuStreamIsCapturing(self.driver.stream.handle, ctypes.byref(status)))
        return status.value != 0

    def empty(self, shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return empty(shape, dtype)


def adapter() -> Adapter:
    """Return this process's adapter, which is installed on the first call."""
    present = devices.ADAPTERS["cuda"]
    if not isinstance(present, Adapter):
        devices.ADAPTERS["cuda"] = present = Adapter()
    return present


@contextlib.contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    """Make a stream the current one within this context."""
    driver = adapter().driver
    before, driver.stream = driver.stream, stream
    try:
        yield
    finally:
        driver.stream = before


class OnGpu(torch.Tensor):
    """A tensor of the simulated GPU; results computed from it are on the GPU, too."""

    @property
    def is_cpu(self) -> bool:
        return False

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def device(self) -> torch.device:
        return _DEVICE

    def data_ptr(self) -> int:
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
            pointer = torch.Tensor.data_ptr(self)
        return adapter().driver.address_of(pointer) or pointer

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.data_ptr:
            return args[0].data_ptr()
        if function is torch.Tensor.tolist:
            return values(args[0]).tolist()
        if function is torch.Tensor.backward:
            return _backward(*args, **(kwargs or {}))
        if function is torch.Tensor.__deepcopy__:
            adapter().driver.stream.synchronize()  # copies the storage, which the dispatcher below does not see
        if function in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu):
            return _moved(function, args, kwargs or {})
        return _on_the_device(function, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        _refuse_mixture(function, tensors)
        kwargs.pop("device", None)
        if not (function.is_view or "empty" in function.overloadpacket.__name__):
            adapter().driver.stream.synchronize()  # PyTorch would compute on the stream
        with torch._C._DisableTorchDispatch():
            result = function(*args, **kwargs)
        return tree_map(lambda x: _wrap(x) if isinstance(x, torch.Tensor) else x, result)


def _refuse_mixture(function: Any, tensors: list[torch.Tensor]) -> None:
    name = function.overloadpacket.__name__
    if name in ("copy_", "_foreach_copy_") or "index" in name:
        return
    if any(not isinstance(x, OnGpu) and x.dim() > 0 and x.layout is torch.strided for x in tensors):
        shapes = [(type(x).__name__, *x.shape) for x in tensors]
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {shapes}")


def _wrap(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, OnGpu):
        return tensor
    if tensor.layout is not torch.strided:
        return torch.Tensor._make_subclass(OnGpu, tensor)
    with torch._C._DisableTorchDispatch():
        if adapter().driver.address_of(tensor.untyped_storage().data_ptr()) is None:
            place = _allocated(tensor.shape, tensor.dtype)
            if tensor.numel() and not tensor.is_contiguous() and tensor.stride() != (0,) * tensor.dim():
                place = place.as_strided(tensor.shape, tensor.stride()) if _is_dense(tensor) else place
            tensor = place.copy_(tensor)
        return torch.Tensor._make_subclass(OnGpu, tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == tensor.numel()


def _allocated(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    count = math.prod(shape)
    memory = adapter().driver.allocate(count * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=max(count, 1 if dtype.itemsize <= _GRAIN else 0))[:count].view(
        tuple(shape)
    )


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gpu(tensor.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return values(gradient)


class _Down(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return values(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gpu(gradient)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _moved(function: Any, args: Any, kwargs: Any) -> Any:
    """Implement ``to``, ``cuda``, ``cpu``."""
    tensor, *rest = args
    kwargs = {name: value for name, value in kwargs.items() if name != "non_blocking"}
    device = kwargs.pop("device", None)
    if function is not torch.Tensor.to:
        device, rest = "cpu" if function is torch.Tensor.cpu else _DEVICE, []
    dtype = kwargs.pop("dtype", None)
    for tensors in rest:
        if isinstance(tensors, torch.Tensor):
            device, dtype = tensors.device, tensors.dtype
        elif isinstance(tensors, torch.dtype):
            dtype = tensors
        elif isinstance(tensors, str | torch.device):
            device = tensors
    on_gpu = isinstance(tensor, OnGpu)
    target_cuda = on_gpu if device is None else _is_cuda(device)
    moved = tensor if target_cuda == on_gpu else (_Up if target_cuda else _Down).apply(tensor)
    if moved is not tensor:
        kwargs.pop("copy", None)
    if dtype is None and not kwargs:
        return moved
    return _on_the_device(torch.Tensor.to, (moved, dtype or moved.dtype), kwargs)


def _backward(
    tensor: torch.Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = ()
) -> None:
    # Bypass Tensor.backward, which would return here, or call hooks outside of the current mode.
    gradient = torch.ones_like(tensor) if gradient is None else gradient
    keep = create_graph if retain_graph is None else retain_graph
    options = {"allow_unreachable": True, "accumulate_grad": True}
    torch.autograd.graph._engine_run_backward(
        (tensor,), (gradient,), keep, create_graph, tuple(inputs or ()), **options
    )


def _on_the_device(function: Any, args: Any, kwargs: Any) -> Any:
    """Run calls with ``device="cuda"`` on this device."""
    requested = kwargs.get("device")
    if _is_cuda(requested):
        kwargs = {**kwargs, "device": "cpu"}
    with torch._C.DisableTorchFunctionSubclass():
        result = function(*args, **kwargs)
    if _is_cuda(requested) and isinstance(result, torch.Tensor) and not isinstance(result, OnGpu):
        needs = result.requires_grad
        result = gpu(result.detach()).requires_grad_(needs)
    return result


class _Mode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu) and not isinstance(args[0], OnGpu):
            return _moved(function, args, kwargs)
        if function is torch.Tensor.backward:  # hooks run within the current mode
            with self:
                return _backward(*args, **kwargs)
        device = kwargs.get("device")
        if isinstance(device, str | torch.device) and _is_cuda(device):
            return _on_the_device(function, args, kwargs)
        return function(*args, **kwargs)


@contextlib.contextmanager
def present() -> Iterator[None]:
    """Make ``device="cuda"`` mean the simulated device; see the module docstring."""
    adapter()
    common = torch.cuda.amp.common
    before, common.amp_definitely_not_available = common.amp_definitely_not_available, lambda: False
    # Parameters cannot change their class, so modules get new ones.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Mode():
            yield
    finally:
        common.amp_definitely_not_available = before
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def empty(shape: Any, dtype: torch.dtype = torch.float32) -> OnGpu:
    """Return uninitialized GPU memory."""
    return torch.Tensor._make_subclass(OnGpu, _allocated(shape, dtype))  # type: ignore[return-value]


def gpu(values: torch.Tensor) -> OnGpu:
    """Return a copy on the GPU."""
    if values.is_sparse:
        return torch.Tensor._make_subclass(OnGpu, values.clone())  # type: ignore[return-value]
    on_gpu = empty(values.shape, values.dtype)
    adapter().driver.stream.synchronize()  # earlier work may still be writing to that memory
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch(), torch.no_grad():
        on_gpu.copy_(values)
    return on_gpu


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values that the current stream sees, as a CPU tensor."""
    assert isinstance(tensor, OnGpu), type(tensor)
    adapter().driver.stream.synchronize()
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch(), torch.no_grad():
        if tensor.is_sparse:
            return torch.sparse_coo_tensor(tensor._indices(), tensor._values(), tensor.shape)
        return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
