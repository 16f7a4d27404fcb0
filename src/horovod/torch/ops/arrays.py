"""Conversion of other libraries' arrays, such as CuPy's, to tensors that share their memory.

Arrays are imported with DLPack or, if the library lacks it, with ``__cuda_array_interface__``. NumPy arrays are
rejected.

The result is an array of the argument's library if that library can import DLPack, and a torch.Tensor otherwise.
In-place operations return the argument. Before the operation, PyTorch's current stream waits for the other library's
stream. After it, the other library's stream waits for the result. With ``__cuda_array_interface__``, this requires that
the interface names a stream.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from horovod.common.dtypes import class_name, is_immutable, library_of
from horovod.common.frontends import TORCH as frontend
from horovod.common.frontends import add_rank
from horovod.torch.ops import devices, handles

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Stream numbers with a special meaning in __cuda_array_interface__: 1 is the legacy default stream, which is 0 in
# PyTorch, and 2 is the per-thread default stream.
_LEGACY = 1
_PER_THREAD = 2


def accepting(function: _Function) -> _Function:
    """Make an operation accept arrays of other libraries, and name the rank in its errors. Used as a decorator.

    The first argument of ``function`` is ``tensor``, or ``tensors`` for a grouped operation. See ``call``.

    Returns:
        The decorated function.
    """
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
            add_rank(frontend, error)
            raise

    return accepts  # type: ignore[return-value]


def call(function: Callable[..., Any], argument: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operation with an array of another library, or with a list that contains such arrays.

    If the result is a handle, ``synchronize`` converts the operation's result. A function whose name ends with an
    underscore works in place.

    Returns:
        The result as an array of the same library, or a handle.
    """
    name = function.__name__
    in_place = name.endswith("_")
    what = name.removesuffix("_").removesuffix("_async")
    if isinstance(argument, Sequence):
        argument = list(argument)
        tensors: Any = [tensor_of(array, what, in_place) for array in argument]
    else:
        tensors = tensor_of(argument, what, in_place)
    result = function(tensors, *args, **kwargs)
    if "_async" in name:
        handles.then(result, lambda outcome: _back(outcome, argument, in_place))
        return result
    return _back(result, argument, in_place)


def is_foreign(array: Any) -> bool:
    """Return True if ``array`` belongs to a library, other than NumPy, that can share memory."""
    if isinstance(array, torch.Tensor) or any(library_of(kind) == "numpy" for kind in type(array).__mro__):
        return False
    return hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")


def _any_foreign(arrays: Any) -> bool:
    return isinstance(arrays, Sequence) and any(map(is_foreign, arrays))


def tensor_of(array: Any, operation: str, in_place: bool = False) -> Any:
    """Return a tensor that shares the memory of an array; return other values unchanged.

    The current stream waits for pending work on the array's stream.

    Raises:
        ValueError: If the array cannot be imported. The message names the operation and the array's type.
    """
    if not is_foreign(array):
        return array
    kind = class_name(array)
    if in_place and is_immutable(array):
        raise ValueError(f"{operation}: a {kind} cannot be changed in place; use the operation that returns a new one")
    try:
        if hasattr(array, "__dlpack__"):
            return torch.from_dlpack(array)
        return _by_interface(array)
    except (BufferError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"{operation}: cannot convert a {kind} to a torch.Tensor: {error}") from error


def _by_interface(array: Any) -> torch.Tensor:
    if "cuda" not in devices.ADAPTERS:
        raise ValueError(f"it must be on {devices.supported()}")
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
    # PyTorch has copied the array, because it is on another GPU. Newer versions do not copy if neither a device
    # argument nor a default device is given, so try again without them.
    with torch._C.DisableTorchFunction():
        there = torch.as_tensor(array)
    if there.data_ptr() == address:
        return there
    raise ValueError(
        f"it must be in the memory of the current GPU, {tensor.device}; select the array's GPU with "
        "torch.cuda.set_device"
    )


def _stream_of(interface: dict[str, Any], device: torch.device) -> Any:
    """Return the stream on which the array's library accesses it, or None if unknown."""
    stream = interface.get("stream")
    if stream is None:
        return None
    if stream == _PER_THREAD:
        raise ValueError("its stream must not be the per-thread default stream, which PyTorch does not have")
    return devices.ADAPTERS["cuda"].another_stream(0 if stream == _LEGACY else stream, device)


def _back(result: Any, argument: Any, in_place: bool) -> Any:
    if isinstance(argument, list):
        return [_back(one, like, in_place) for one, like in zip(result, argument, strict=True)]
    if isinstance(result, tuple):
        # The result of an alltoall is a tuple of the output and the received splits. Convert only the output.
        return (_back(result[0], argument, in_place), *result[1:])
    if not is_foreign(argument):
        return result
    take = _from_dlpack(argument)
    # Convert the result even after an in-place operation: the conversion makes the library's current stream wait for
    # the operation.
    converted = take(result) if take is not None else result
    if take is None and hasattr(argument, "__cuda_array_interface__"):
        _let_wait(argument, result.device)
    return argument if in_place else converted


def _let_wait(array: Any, device: torch.device) -> None:
    """Make an array's stream wait for PyTorch's current stream, so that the array can safely be used afterwards."""
    other = _stream_of(array.__cuda_array_interface__, device)
    if other is not None:
        other.wait_stream(devices.ADAPTERS["cuda"].stream(device))


def _from_dlpack(array: Any) -> Callable[[Any], Any] | None:
    if not hasattr(array, "__dlpack__"):
        return None
    package = library_of(type(array))
    package = "jax" if package == "jaxlib" else package
    of_standard = getattr(array, "__array_namespace__", None)
    namespace = of_standard() if of_standard is not None else sys.modules.get(package)
    return getattr(namespace, "from_dlpack", None) or getattr(getattr(namespace, "dlpack", None), "from_dlpack", None)
