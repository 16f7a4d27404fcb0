"""Arrays whose size is known only once they have arrived, as those of allgather and alltoall are.

MXNet 1.9 has no way to give an array its shape later. So the operation writes to an array that stands for the result,
which orders it among MXNet's others, and the result becomes an NDArray where it is used first; that waits.
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
    """An NDArray (or mx.np.ndarray) beside ``like`` with memory of its own, not filled. ``number``: MXNet's, of the
    dtype."""
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
    """What an operation is going to bring: for each member an array and its sizes."""

    def __init__(self, stand_in: Any, address: int) -> None:
        """``stand_in``: the array that the operation writes to; ``address``: what ``_library.push`` returned."""
        self._stand_in = stand_in
        self._address = address
        self._failure: MXNetError | None = None
        self._lock = threading.Lock()  # results of one operation may be used in several threads

    def __del__(self) -> None:
        _library.library.hvd_mxnet_release(self._address)

    def wait(self) -> None:
        """Until it is there. Raises MXNetError, each time, when the operation failed."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                self._stand_in.wait_to_read()
            except MXNetError as error:  # MXNet itself tells of it once
                self._failure = error
                raise

    def sizes(self, member: int) -> list[int]:
        """Rows by set rank. Waits."""
        self.wait()
        count = _library.library.hvd_mxnet_sizes(self._address, member, None, 0)
        sizes = (ctypes.c_int64 * count)()
        _library.library.hvd_mxnet_sizes(self._address, member, sizes, count)
        return list(sizes)

    def array(self, member: int, like: Any, shape: Sequence[int], number: int) -> Any:
        """What has arrived for a member, once: an array beside ``like``; ``shape``: of what was given. Waits."""
        made = new_array(like, (sum(self.sizes(member)), *shape[1:]), number)
        _library.take(self._address, member, made)
        return made


class _Arriving:
    """An NDArray that asks ``make`` for another one when it is used first, and is that from then on."""

    writable = True

    def __new__(cls, make: Callable[[], Any] | None = None, *, handle: Any = None, writable: bool = True) -> Any:
        # MXNet makes views and copies by the class of what they are of.
        plain = _numpy_array if issubclass(cls, _numpy_array) else mx.nd.NDArray
        return object.__new__(cls) if make is not None else plain(handle, writable)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._made: Any = None
        self._lock = threading.Lock()  # what has arrived can be taken once

    @property
    def handle(self) -> Any:
        if self._make is not None:
            with self._lock:
                if self._make is not None:
                    self._made = self._make()
                    self._make = None
        return self._made.handle

    def __del__(self) -> None:
        """What it has become is not its own to free."""


class ArrivingNDArray(_Arriving, mx.nd.NDArray):
    """The result of an allgather or alltoall; its first use waits until it is there."""


class arriving_ndarray(_Arriving, _numpy_array):  # as the class is called of which it is one
    """The same for arrays of mx.np."""


def arriving(like: Any, make: Callable[[], Any]) -> Any:
    """An array of the kind of ``like`` that becomes what ``make`` returns where it is used first."""
    return (arriving_ndarray if isinstance(like, _numpy_array) else ArrivingNDArray)(make)
