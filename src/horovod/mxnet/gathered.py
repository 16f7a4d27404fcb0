"""Results of allgather and alltoall, whose size is unknown until they arrive.

MXNet 1.9 cannot set the shape of an array later. So the operation writes to a placeholder array, which orders it among
MXNet's other operations. The result becomes an NDArray on first use, which waits.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError, NDArrayHandle, check_call, mx_uint

from horovod.mxnet import _library

_numpy_array = mx.np.ndarray


def new_array(like: Any, shape: Sequence[int], number: int) -> Any:
    """Return a new, uninitialized NDArray or mx.np.ndarray on the device of ``like``.

    ``number`` is MXNet's number of the dtype.
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
    """Future results of an operation: for each member an array and its sizes."""

    def __init__(self, stand_in: Any, address: int) -> None:
        """Store the operation.

        ``stand_in`` is the placeholder that it writes to, and ``address`` is the result of ``_library.push``.
        """
        self._stand_in = stand_in
        self._address = address
        self._failure: MXNetError | None = None
        self._lock = threading.Lock()  # several threads may use the results of one operation

    def __del__(self) -> None:
        _library.library.hvd_mxnet_release(self._address)

    def wait(self) -> None:
        """Wait for the operation.

        Raises:
            MXNetError: The operation failed. Raised by every call.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                self._stand_in.wait_to_read()
            except MXNetError as error:  # MXNet raises it only once
                self._failure = error
                raise

    def sizes(self, member: int) -> list[int]:
        """Wait, and return the number of rows from each rank of the set."""
        self.wait()
        count = _library.library.hvd_mxnet_sizes(self._address, member, None, 0)
        sizes = (ctypes.c_int64 * count)()
        _library.library.hvd_mxnet_sizes(self._address, member, sizes, count)
        return list(sizes)

    def array(self, member: int, like: Any, shape: Sequence[int], number: int) -> Any:
        """Wait, and return the received array of a member. Can be called once per member.

        ``like`` determines the kind of array, and ``shape`` is the shape of the input.
        """
        made = new_array(like, (sum(self.sizes(member)), *shape[1:]), number)
        _library.take(self._address, member, made)
        return made


class _Arriving:
    """NDArray that calls ``make`` on first use, and then represents the array that ``make`` has returned."""

    writable = True

    def __new__(cls, make: Callable[[], Any] | None = None, *, handle: Any = None, writable: bool = True) -> Any:
        # MXNet creates views and copies with the class of the original.
        plain = _numpy_array if issubclass(cls, _numpy_array) else mx.nd.NDArray
        return object.__new__(cls) if make is not None else plain(handle, writable)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._made: Any = None
        self._lock = threading.Lock()  # the result can be taken only once

    @property
    def handle(self) -> Any:
        if self._make is not None:
            with self._lock:
                if self._make is not None:
                    self._made = self._make()
                    self._make = None
        return self._made.handle

    def __del__(self) -> None:
        """Do nothing: the other array owns the handle."""


class ArrivingNDArray(_Arriving, mx.nd.NDArray):
    """Result of an allgather or alltoall, whose first use waits for it."""


class arriving_ndarray(_Arriving, _numpy_array):  # named like its base class
    """Result of an allgather or alltoall as an mx.np array."""


def arriving(like: Any, make: Callable[[], Any]) -> Any:
    """Return an array of the kind of ``like`` that becomes the result of ``make`` on first use."""
    return (arriving_ndarray if isinstance(like, _numpy_array) else ArrivingNDArray)(make)
