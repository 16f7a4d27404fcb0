"""Validation of operation arguments before they are passed to MXNet's engine.

An invalid argument raises ArgumentError, which is an MXNetError and a ValueError. Its message names the operation, the
argument, the value, the accepted values and the rank.
"""

import ctypes
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeVar

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.ndarray.sparse import BaseSparseNDArray

from horovod._arrays.collectives import set_id
from horovod.common import dtypes, ops
from horovod.common.exceptions import NotRunningError, UnsupportedOpError
from horovod.common.frontends import MXNET as frontend
from horovod.common.frontends import Job, with_rank
from horovod.common.ops import check_parts, check_splits
from horovod.common.process_sets import ProcessSet
from horovod.mxnet._library import ArgumentError, ReduceOpError, ShutDown

_F = TypeVar("_F", bound=Callable[..., Any])

NAMES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "uint8",
    4: "int32",
    5: "int8",
    6: "int64",
    7: "bool",
    8: "int16",
    9: "uint16",
    12: "bfloat16",
}
"""Names of the supported dtypes, by MXNet's dtype numbers."""

_CPU = ("cpu", "cpu_pinned", "cpu_shared")


def refusing(function: _F) -> _F:
    """Decorate a function so that its errors are subclasses of MXNetError and name the rank."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (MXNetError, NotImplementedError):
            raise
        except NotRunningError as error:
            raise ShutDown(str(error)) from None
        except UnsupportedOpError as error:
            raise ReduceOpError(with_rank(frontend, str(error))) from None
        except ValueError as error:
            raise ArgumentError(with_rank(frontend, str(error))) from None

    return checked  # type: ignore[return-value]


def number_of_dtype(array: Any) -> int:
    """Return MXNet's integer code for the dtype of an NDArray."""
    number = ctypes.c_int()
    check_call(_LIB.MXNDArrayGetDType(array.handle, ctypes.byref(number)))
    return number.value


def code_of(value: Any, what: str, written: bool = False) -> int:
    """Return the Horovod engine's code for the dtype of an array.

    Raises:
        ValueError: If ``value`` is not an NDArray, is sparse, is on a GPU, has an unsupported dtype, or is read-only
            although ``written`` is True. The message begins with ``what``.
    """
    if not isinstance(value, mx.nd.NDArray):
        raise ValueError(f"{what} must be an NDArray of MXNet, got a {type(value).__name__}")
    if isinstance(value, BaseSparseNDArray):
        raise ValueError(f"{what} must have the storage type default, got {value.stype}; see NDArray.tostype")
    if value.context.device_type not in _CPU:
        raise ValueError(
            f"{what} must be on the CPU, because horovod.mxnet does not use GPUs, got {value.context}; see "
            "NDArray.as_in_context"
        )
    number = number_of_dtype(value)
    name = NAMES.get(number)
    # Show the dtype's number in the message, because MXNet's Python package has no names for uint32 and uint64.
    if name is None:
        raise ValueError(f"{what} must have one of the dtypes {dtypes.SUPPORTED}, got MXNet's dtype number {number}")
    if written and not value.writable:
        raise ValueError(f"{what} must be writable, got a read-only NDArray")
    return dtypes.CODES[name]


def codes_of(tensors: Any, operation: str, written: bool = False) -> list[int]:
    """Return the Horovod engine's dtype code of each array in a list.

    Raises:
        ValueError: If ``tensors`` is not a list, or the type of an array is not supported.
    """
    if isinstance(tensors, mx.nd.NDArray) or not isinstance(tensors, Sequence):
        raise ValueError(f"{operation}: tensors must be a list of NDArrays, got a {type(tensors).__name__}")
    return [code_of(tensor, f"{operation}: tensors[{i}]", written) for i, tensor in enumerate(tensors)]


def check_priority(priority: Any, operation: str) -> int:
    """Check ``priority`` and convert it to an int.

    Returns:
        The priority.

    Raises:
        ValueError: If ``priority`` is not an integer.
    """
    if isinstance(priority, bool) or not isinstance(priority, Integral):
        raise ValueError(f"{operation}: priority must be an integer (default 0), got {priority!r}")
    return int(priority)


def splits_of(splits: Any, rows: int | None, process_set: ProcessSet) -> list[int]:
    """Return the row count for each rank of the process set. An empty list means equal parts.

    ``rows`` is the size of dimension 0, or None for a scalar, which the engine rejects on all ranks.

    Raises:
        ValueError: If ``splits`` has another shape, length or dtype.
    """
    size = process_set.size() or 1
    if splits is None:
        check_parts("alltoall", rows or 0, size)
        return []
    must = f"alltoall: splits must be 1-D, int32, with {size} integers of at least 0, got"
    values = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else np.asarray(splits)
    if values.ndim != 1:
        raise ValueError(f"{must} {values.ndim} dimensions")
    if values.dtype != np.int32 if hasattr(splits, "dtype") else not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{must} dtype {values.dtype.name}")
    given = [int(value) for value in values]
    check_splits("alltoall", given, sum(given) if rows is None else rows, size)
    return given


class _Unnamed:
    """Generator of names for unnamed operations, which are numbered in call order.

    Each kind of operation and each process set has a separate counter.
    """

    COUNT = 256
    """Number of distinct names before names are reused. Operations with the same name run one after another."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._counts: Counter[tuple[str, int]] = Counter()

    def next(self, operation: str, process_set: int) -> str:
        if self._job is not frontend.job:
            self._job = frontend.job
            self._counts.clear()
        key = operation, process_set
        self._counts[key] += 1
        return f"noname.{(self._counts[key] - 1) % self.COUNT}"


# Number operations here, in call order. The engine cannot number them, because MXNet can execute them in a different
# order on each rank.
unnamed = _Unnamed()


def begin(operation: str, name: str | None, priority: Any, process_set: ProcessSet) -> tuple[int, int]:
    """Validate the process set and the priority, and return the set's id and the priority."""
    frontend.require_engine()
    ops.wire_name(operation, name)
    return set_id(frontend, process_set, operation), check_priority(priority, operation)


def operation_names(operation: str, name: str | None, number: int, count: int | None) -> tuple[str, list[str]]:
    """Return the name of an operation, and of each array in it. ``count`` is None for a single array."""
    name = name or unnamed.next(operation, number)
    if count is None:
        full = ops.wire_name(operation, name)
        return full, [full]
    return ops.group_names(operation, name, count)
