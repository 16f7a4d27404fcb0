"""Validation of op arguments, before the op is created.

The module checks tensors, names, process sets, root ranks and scale factors. An invalid argument raises ArgumentError.
The message names the operation, the argument, its value and the accepted values.
"""

import re
from typing import Any

import tensorflow as tf

from horovod.common import dtypes, ops
from horovod.common.exceptions import NotRunningError
from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.frontends import operation_on_rank
from horovod.common.ops import Adasum
from horovod.common.process_sets import ProcessSet, by_id
from horovod.tensorflow._library import (
    ArgumentError,
    NotInitialized,
    ReduceOpError,
    ShutDown,
    check_not_compiled,
    refuse,
)
from horovod.tensorflow.util import _executing_eagerly

DTYPES: frozenset[tf.DType] = frozenset(tf.as_dtype(name) for name in dtypes.NAMES)
"""Dtypes that the operations support."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")


def as_tensor(value: Any, operation: str) -> tf.Tensor:
    """Return ``value`` as a tensor.

    Raises:
        ArgumentError: If the dtype is not supported.
    """
    tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    if tensor.dtype not in DTYPES:
        refuse(f"{operation}: dtype must be one of {dtypes.SUPPORTED}, got {tensor.dtype.name}")
    return tensor


def as_tensors(values: Any, operation: str) -> list[tf.Tensor]:
    """Return ``values`` as a list of tensors with the same dtype.

    Raises:
        ArgumentError: If ``values`` is not a list, or its tensors differ in dtype.
    """
    if isinstance(values, tf.Tensor) or not hasattr(values, "__iter__"):
        refuse(f"{operation}: tensors must be a list of tensors, got a {type(values).__name__}")
    tensors = [as_tensor(value, operation) for value in values]
    names = list(dict.fromkeys(tensor.dtype.name for tensor in tensors))
    if len(names) > 1:
        refuse(f"{operation}: tensors must have one dtype, got {', '.join(names)}; make one call for each dtype")
    return tensors


def name_arguments(kind: str, tensor: Any, name: str | None, ignore_name_scope: bool) -> dict[str, Any]:
    """Return the op attributes that set the operation's name. ``tensor`` is the op's first input."""
    if name is not None and not isinstance(name, str):
        refuse(f"{kind}: name must be a string or None, got {name!r}")
    if _executing_eagerly():
        # TensorFlow caches eager kernels by op attributes. Unnamed ops have equal attributes, so they share a kernel.
        return {"tensor_name": name} if name else {"unnamed": True}
    check_not_compiled(kind)
    if not name:
        name = f"{kind}_{_graph_name(tensor).replace('/', '_')}"
    node = _NOT_IN_NAMES.sub("_", name).strip("/")
    # TensorFlow requires node names to begin with a letter or digit.
    if not node[:1].isalnum():
        node = "n" + node
    return {"name": node, "ignore_name_scope": True} if ignore_name_scope else {"name": node}


def _graph_name(tensor: Any) -> str:
    try:
        return tensor.name.rsplit(":", 1)[0]
    except AttributeError:  # An eager tensor captured by a graph has no name.
        return "captured"


def set_id(process_set: ProcessSet | int, operation: str) -> int:
    """Return the id of a registered process set.

    Raises:
        ArgumentError: If the set is not registered. The message names the operation, the rank and the set.
        NotInitialized: If called eagerly before ``init``.
    """
    who = operation_on_rank(frontend, operation)
    if frontend.engine is None and _executing_eagerly():
        _check_running(operation)
    number = process_set if isinstance(process_set, int) else getattr(process_set, "process_set_id", None)
    if number is None:
        refuse(f"{who}: {process_set} is not a registered process set; see add_process_set")
    # If no engine is running, accept any process set. A program can build a graph before it registers the process sets
    # that the graph uses.
    if frontend.job is not None and by_id(number) is None:
        refuse(f"{who}: process set {number} is unknown or was removed; see add_process_set")
    return number


def _check_running(operation: str) -> None:
    """Raise NotInitialized or ShutDown if the engine is not running."""
    try:
        frontend.require_engine()
    except NotRunningError as error:
        raise ShutDown(f"{operation}: {error}") from None
    except ValueError as error:
        raise NotInitialized(f"{operation}: {error}") from None


def check_reduction(
    operation: str, dtype: tf.DType, op: int, prescale: float, postscale: float, process_set: ProcessSet | int
) -> None:
    """Check that a reduction supports the dtype, the scale factors and the process set.

    Raises:
        ArgumentError: If the reduction or the factors do not support the dtype.
        NotImplementedError: If ``op`` is Adasum and the size of the set is not a power of two.
    """
    who = operation_on_rank(frontend, operation)
    ops.check_scale(who, prescale, postscale)
    size = 1
    if op == Adasum:
        found = by_id(set_id(process_set, operation))
        size = (found.size() if found is not None else None) or 1
    ops.check_reduction(who, dtypes.CODES[dtype.name], op, prescale, postscale, size, ArgumentError)


def check_root(root_rank: Any, operation: str) -> int:
    """Return ``root_rank`` as an int. The engine checks later that the root is in the process set.

    Raises:
        ArgumentError: If ``root_rank`` is not an integer.
    """
    if isinstance(root_rank, bool) or not hasattr(root_rank, "__index__"):
        refuse(f"{operation}: root_rank must be the world rank of a member, an int, got {root_rank!r}")
    return root_rank.__index__()


def as_splits(splits: Any) -> tf.Tensor:
    """Convert the splits of an alltoall to a tensor.

    Returns:
        Tensor of int32.

    Raises:
        ArgumentError: If ``splits`` is not a list or 1-D tensor of int32, or is empty.
    """
    try:
        dtype = getattr(splits, "dtype", tf.int32)
        tensor = tf.convert_to_tensor(splits, tf.as_dtype(dtype))
    except (TypeError, ValueError) as error:
        refuse(f"alltoall: splits must be a list or 1-D tensor of int32, got {splits!r} ({error})")
    if tensor.dtype != tf.int32:
        refuse(f"alltoall: splits must have dtype int32, got {tensor.dtype.name}")
    if tensor.shape.rank not in (1, None):
        refuse(f"alltoall: splits must have 1 dimension, got {tensor.shape.rank}")
    # Reject empty splits, because the op would treat them as a request to split the tensor evenly.
    if tensor.shape.num_elements() == 0:
        refuse("alltoall: splits must have one entry for each rank of the set, or be None for equal parts, got none")
    return tensor


def check_scatter(operation: str, tensor: tf.Tensor, op: int, prescale: float, postscale: float) -> None:
    """Check the arguments of a reducescatter.

    Raises:
        ArgumentError: If the tensor, the op or a factor is not supported.
    """
    who = operation_on_rank(frontend, operation)
    ops.check_scatter(who, dtypes.CODES[tensor.dtype.name], tensor.shape.rank, op, ArgumentError, ReduceOpError)
    ops.check_scale(who, prescale, postscale)
