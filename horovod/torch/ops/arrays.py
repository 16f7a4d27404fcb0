"""Arrays of other libraries as arguments (CuPy, JAX, Numba, ...), without a copy: by DLPack or, where there is none, by
``__cuda_array_interface__``. NumPy's are refused as ever.

The result is of the argument's library where that takes DLPack, else a torch.Tensor; operations in place return the
argument. PyTorch's current stream waits for that of the other library before the operation, and the other way round for
the result: by DLPack, or where the interface names a stream for that one.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from horovod.common.faces import TORCH as face
from horovod.common.foreign import is_immutable, kind_of, library
from horovod.common.refusals import add_rank
from horovod.torch.ops import devices, handles

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Streams of __cuda_array_interface__: the legacy default one, which PyTorch calls 0, and another one in each thread.
_LEGACY = 1
_PER_THREAD = 2


def accepting(function: _Function) -> _Function:
    """``function(tensor, ...)``, or ``function(tensors, ...)``, that takes other arrays as well, see ``call``, and
    names the rank in what it refuses."""
    several = function.__name__.startswith("grouped_")
    argument = "tensors" if several else "tensor"

    @functools.wraps(function)
    def accepts(*args: Any, **kwargs: Any) -> Any:
        try:
            if args and isinstance(args[0], torch.Tensor):
                return function(*args, **kwargs)
            given = args[0] if args else kwargs.get(argument)
            if not (_any_foreign(given) if several else is_foreign(given)):
                return function(*args, **kwargs)
            kwargs.pop(argument, None)
            return call(function, given, *args[1:], **kwargs)
        except (ValueError, NotImplementedError) as error:
            add_rank(face, error)
            raise

    return accepts  # type: ignore[return-value]


def call(function: Callable[..., Any], given: Any, *args: Any, **kwargs: Any) -> Any:
    """``function(given, ...)`` where ``given`` is an array of another library, or a list with some; what it returns is
    of that library, too. A function whose name ends with an underscore works in place; a handle gives its result in
    ``synchronize``."""
    name = function.__name__
    in_place = name.endswith("_")
    what = name.removesuffix("_").removesuffix("_async")
    if isinstance(given, Sequence):
        given = list(given)
        tensors: Any = [tensor_of(array, what, in_place) for array in given]
    else:
        tensors = tensor_of(given, what, in_place)
    result = function(tensors, *args, **kwargs)
    if "_async" in name:
        handles.then(result, lambda outcome: _back(outcome, given, in_place))
        return result
    return _back(result, given, in_place)


def is_foreign(array: Any) -> bool:
    """Is it another library's, and no NumPy array?"""
    if isinstance(array, torch.Tensor) or any(library(kind) == "numpy" for kind in type(array).__mro__):
        return False
    return hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")


def _any_foreign(arrays: Any) -> bool:
    return isinstance(arrays, Sequence) and any(map(is_foreign, arrays))


def tensor_of(array: Any, operation: str, in_place: bool = False) -> Any:
    """A tensor over the array's memory; what is no array of another library as it is. The current stream waits for
    what is on the array's.

    Raises ValueError naming the operation and the array's type where that cannot be.
    """
    if not is_foreign(array):
        return array
    kind = kind_of(array)
    if in_place and is_immutable(array):
        raise ValueError(f"{operation}: a {kind} cannot be changed in place; take the operation that returns a new one")
    try:
        if hasattr(array, "__dlpack__"):
            return torch.from_dlpack(array)
        return _by_interface(array)
    except (BufferError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"{operation}: a {kind} that cannot be taken as a torch.Tensor: {error}") from error


def _by_interface(array: Any) -> torch.Tensor:
    interface = array.__cuda_array_interface__
    tensor = _over_memory(array, interface)
    other = _stream_of(interface, tensor.device)
    if other is not None:
        devices.ADAPTERS["cuda"].stream(tensor.device).wait_stream(other)
    return tensor


def _over_memory(array: Any, interface: dict[str, Any]) -> torch.Tensor:
    address = interface["data"][0]
    tensor = torch.as_tensor(array, device="cuda")
    if tensor.numel() == 0 or tensor.data_ptr() == address:
        return tensor
    # PyTorch has copied it from another GPU. Newer versions take it where it is if no device is named, nor a default.
    with torch._C.DisableTorchFunction():
        there = torch.as_tensor(array)
    if there.data_ptr() == address:
        return there
    raise ValueError(
        f"it is in the memory of another GPU, and the current one is {tensor.device}; choose the array's "
        "(torch.cuda.set_device)"
    )


def _stream_of(interface: dict[str, Any], device: torch.device) -> Any:
    """The other library's, None where it names none."""
    stream = interface.get("stream")
    if stream is None:
        return None
    if stream == _PER_THREAD:
        raise ValueError("its stream is the thread's own default stream, which PyTorch does not have")
    return devices.ADAPTERS["cuda"].another_stream(0 if stream == _LEGACY else stream, device)


def _back(result: Any, given: Any, in_place: bool) -> Any:
    if isinstance(given, list):
        return [_back(one, like, in_place) for one, like in zip(result, given, strict=True)]
    if isinstance(result, tuple):  # an alltoall's, with the splits
        return (_back(result[0], given, in_place), *result[1:])
    if not is_foreign(given):
        return result
    take = _from_dlpack(given)
    # In place, too: it has the library's current stream wait.
    converted = take(result) if take is not None else result
    if take is None and hasattr(given, "__cuda_array_interface__"):
        _let_wait(given, result.device)
    return given if in_place else converted


def _let_wait(array: Any, device: torch.device) -> None:
    """What its library does with the array later waits for the operation, which has read or written it."""
    other = _stream_of(array.__cuda_array_interface__, device)
    if other is not None:
        other.wait_stream(devices.ADAPTERS["cuda"].stream(device))


def _from_dlpack(array: Any) -> Callable[[Any], Any] | None:
    if not hasattr(array, "__dlpack__"):
        return None
    package = library(type(array))
    package = "jax" if package == "jaxlib" else package
    of_standard = getattr(array, "__array_namespace__", None)
    namespace = of_standard() if of_standard is not None else sys.modules.get(package)
    return getattr(namespace, "from_dlpack", None) or getattr(getattr(namespace, "dlpack", None), "from_dlpack", None)
