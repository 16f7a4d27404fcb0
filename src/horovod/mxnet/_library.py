"""Interface to the native library that runs Horovod operations in MXNet's engine.

The size of an allgather's or alltoall's result is unknown until it arrives, and MXNet 1.9 cannot set the shape of an
array later. Therefore the operation writes to a placeholder array, which MXNet uses to order the operation among
others. The first use of the result waits for the operation and creates the NDArray.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mxnet as mx
from mxnet.base import _LIB, MXNetError, NDArrayHandle, check_call, mx_uint, register_error

from horovod.common.exceptions import HorovodInternalError, NotRunningError
from horovod.common.frontends import library_path

LIBRARY = "horovod.mxnet._mxnet"
_MESSAGE = 4096  # bytes


class _LibraryError(MXNetError):
    """Base class of errors. It removes the class name from the start of MXNet's error message."""

    name: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message.removeprefix(f"{self.name}: "))


# Programs can catch each class both as an MXNet error and as a standard Python error.


class ArgumentError(_LibraryError, ValueError):
    """Error raised for an invalid argument, or for an operation before ``init``."""

    name = "HorovodArgumentError"


class ReduceOpError(ArgumentError, HorovodInternalError):
    """Error raised for an invalid ``op`` of a reducescatter. Older programs catch it as a RuntimeError."""


class ShutDown(MXNetError, NotRunningError):
    """Error raised if an operation is called after ``shutdown``."""


class InternalError(_LibraryError, HorovodInternalError):
    """Error raised for a failed operation: ranks disagree, a rank was lost, or Horovod was shut down."""

    name = "HorovodInternalError"


for _error in (ArgumentError, InternalError):
    register_error(_error.name, _error)


class _Order(ctypes.Structure):
    """ctypes mirror of the C struct ``Order`` in bindings/mxnet/call.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int32) for name in ("kind", "op", "root", "process_set", "wire", "priority")),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("name", ctypes.c_char_p),
        ("grouped", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("dtypes", ctypes.POINTER(ctypes.c_int32)),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("splits_count", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class Operation:
    """Parameters of an operation, except for its arrays.

    ``_core.pyi`` defines the integer codes. ``names`` are the names of the arrays in the group.
    """

    kind: int
    name: str
    names: Sequence[str]
    process_set: int
    op: int = 1
    root: int = 0
    priority: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = 0
    grouped: bool = False
    splits: Sequence[int] = ()


def _load() -> ctypes.CDLL:
    """Load the native library and connect it to Horovod's engine and to MXNet.

    Returns:
        The library.

    Raises:
        ImportError: If the library cannot be loaded. The message gives the reason.
    """
    what = f"horovod.mxnet cannot load its native part {LIBRARY} into MXNet {mx.__version__}"
    try:
        from horovod import _core

        loaded = ctypes.CDLL(str(library_path(LIBRARY)))
        loaded.hvd_mxnet_attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        loaded.hvd_mxnet_push.argtypes = [ctypes.POINTER(_Order), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        loaded.hvd_mxnet_sizes.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_int]
        take = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        loaded.hvd_mxnet_take.argtypes = take
        loaded.hvd_mxnet_release.argtypes = [ctypes.c_void_p]
        loaded.hvd_mxnet_release.restype = None
        message = ctypes.create_string_buffer(_MESSAGE)
        failed = loaded.hvd_mxnet_attach(_core.frontend_api(), mx.base._LIB._handle, message, _MESSAGE)
    except (ImportError, OSError, AttributeError) as error:
        raise ImportError(f"{what}: {error}") from error
    if failed:
        raise ImportError(f"{what}: {message.value.decode(errors='replace')}")
    return loaded


library = _load()


def push(operation: Operation, dtypes: Sequence[int], inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """Submit an operation on NDArrays to MXNet's engine, without waiting.

    Args:
        operation: Parameters of the operation.
        dtypes: Horovod's dtype code of each input.
        inputs: Input arrays.
        outputs: One output per input, which can be the input itself. For allgather and alltoall, a single placeholder
            array.

    Returns:
        Address of the result for allgather and alltoall, otherwise 0.

    Raises:
        MXNetError: If MXNet rejects an array.
    """
    count = len(inputs)
    order = _Order(
        kind=operation.kind,
        op=operation.op,
        root=operation.root,
        process_set=operation.process_set,
        wire=operation.wire,
        priority=operation.priority,
        prescale=operation.prescale,
        postscale=operation.postscale,
        name=operation.name.encode(),
        grouped=operation.grouped,
        count=count,
        names=(ctypes.c_char_p * count)(*(name.encode() for name in operation.names)),
        dtypes=(ctypes.c_int32 * count)(*dtypes),
        inputs=(ctypes.c_void_p * count)(*(array.handle.value for array in inputs)),
        outputs=(ctypes.c_void_p * len(outputs))(*(array.handle.value for array in outputs)),
        splits=(ctypes.c_int64 * len(operation.splits))(*operation.splits),
        splits_count=len(operation.splits),
    )
    gathered = ctypes.c_void_p()
    _call(library.hvd_mxnet_push, ctypes.byref(order), ctypes.byref(gathered))
    return gathered.value or 0


def take(gathered: int, member: int, array: Any) -> None:
    """Move one received array of an operation to ``array``, a new NDArray of the same size."""
    _call(library.hvd_mxnet_take, gathered, member, array.handle.value)


def _call(function: Callable[..., int], *arguments: Any) -> None:
    message = ctypes.create_string_buffer(_MESSAGE)
    if function(*arguments, message, _MESSAGE):
        raise MXNetError(message.value.decode(errors="replace"))


_numpy_array = mx.np.ndarray


def new_array(like: Any, shape: Sequence[int], number: int) -> Any:
    """Create an uninitialized array of the same class and on the same device as ``like``.

    ``number`` is MXNet's code for the dtype.

    Returns:
        The new array.
    """
    handle = NDArrayHandle()
    check_call(
        _LIB.MXNDArrayCreateEx(
            (mx_uint * len(shape))(*shape),
            mx_uint(len(shape)),
            ctypes.c_int(like.context.device_typeid),
            ctypes.c_int(like.context.device_id),
            ctypes.c_int(0),
            ctypes.c_int(number),
            ctypes.byref(handle),
        )
    )
    return _numpy_array(handle) if isinstance(like, _numpy_array) else mx.nd.NDArray(handle)


class Arrival:
    """Pending results of an allgather or alltoall: the received array and sizes for each input array."""

    def __init__(self, stand_in: Any, address: int) -> None:
        """Store the operation whose results are pending.

        ``stand_in`` is the placeholder array that the operation writes to. ``address`` is the result of ``push``.
        """
        self._stand_in = stand_in
        self._address = address
        self._failure: MXNetError | None = None
        # Lock, because several threads can use the results of the same operation.
        self._lock = threading.Lock()

    def __del__(self) -> None:
        library.hvd_mxnet_release(self._address)

    def wait(self) -> None:
        """Wait until the operation is complete, raising its error if it failed.

        Raises:
            MXNetError: If the operation failed. Every call raises the error again.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                self._stand_in.wait_to_read()
            except MXNetError as error:
                # Save the error, because MXNet raises it only once.
                self._failure = error
                raise

    def sizes(self, member: int) -> list[int]:
        """Wait for the operation, and return how many rows each rank has sent."""
        self.wait()
        count = library.hvd_mxnet_sizes(self._address, member, None, 0)
        sizes = (ctypes.c_int64 * count)()
        library.hvd_mxnet_sizes(self._address, member, sizes, count)
        return list(sizes)

    def array(self, member: int, like: Any, shape: Sequence[int], number: int) -> Any:
        """Wait for the operation, and return one of its output arrays.

        Call this once per output array. ``like`` determines the class of the array, and ``shape`` is the shape of the
        input.

        Returns:
            The output array.
        """
        made = new_array(like, (sum(self.sizes(member)), *shape[1:]), number)
        take(self._address, member, made)
        return made


class _Arriving:
    """NDArray that is created on first use.

    The first use calls ``make``. From then on, this object represents the array that ``make`` has returned.
    """

    writable = True

    def __new__(cls, make: Callable[[], Any] | None = None, *, handle: Any = None, writable: bool = True) -> Any:
        # MXNet creates views and copies of an array by calling its class without `make`. They are ordinary arrays.
        plain = _numpy_array if issubclass(cls, _numpy_array) else mx.nd.NDArray
        return object.__new__(cls) if make is not None else plain(handle, writable)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._loaded: Any = None
        # Lock that ensures that `make` is called only once, even if several threads use the array.
        self._lock = threading.Lock()

    @property
    def handle(self) -> Any:
        if self._make is not None:
            with self._lock:
                if self._make is not None:
                    self._loaded = self._make()
                    self._make = None
        return self._loaded.handle

    def __del__(self) -> None:
        """Do not free the handle, as the base class would, because the array that ``make`` returned owns it."""


class ArrivingNDArray(_Arriving, mx.nd.NDArray):
    """Result of an allgather or alltoall. Its first use waits for the operation."""


class arriving_ndarray(_Arriving, _numpy_array):
    """Result of an allgather or alltoall as an mx.np array."""


def arriving(like: Any, make: Callable[[], Any]) -> Any:
    """Return an array of the same type as ``like`` that calls ``make`` on first use."""
    return (arriving_ndarray if isinstance(like, _numpy_array) else ArrivingNDArray)(make)
