"""What the ops take: tensors, names, sets, roots and factors, checked before an op is made.

What is wrong raises ArgumentError, naming the operation, the argument, its value and what is accepted.
"""

import re
from typing import Any

import tensorflow as tf

from horovod.common import dtypes
from horovod.common.ops import OP_NAMES, Adasum, Average, Sum, check_adasum_size, check_op, check_scale
from horovod.common.process_sets import ProcessSet
from horovod.common.state import state
from horovod.tensorflow._library import check_not_compiled, refuse
from horovod.tensorflow.util import _executing_eagerly

DTYPES: frozenset[tf.DType] = frozenset(tf.as_dtype(name) for name in dtypes.NAMES)
"""What can travel."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")


def as_tensor(value: Any, operation: str) -> tf.Tensor:
    """``value`` as a tensor whose dtype can travel. Raises ArgumentError naming operation and dtype otherwise."""
    tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    if tensor.dtype not in DTYPES:
        refuse(f"{operation}: dtype {tensor.dtype.name} is not supported; accepted are {dtypes.SUPPORTED}")
    return tensor


def as_tensors(values: Any, operation: str) -> list[tf.Tensor]:
    """A list of tensors of one dtype. Raises ArgumentError for no list, and for several dtypes, naming them."""
    if isinstance(values, tf.Tensor) or not hasattr(values, "__iter__"):
        refuse(f"{operation}: tensors is a {type(values).__name__}; accepted is a list of tensors")
    tensors = [as_tensor(value, operation) for value in values]
    names = list(dict.fromkeys(tensor.dtype.name for tensor in tensors))
    if len(names) > 1:
        refuse(f"{operation}: the tensors have dtypes {', '.join(names)}; accepted is one dtype a call")
    return tensors


def name_arguments(kind: str, tensor: Any, name: str | None, ignore_name_scope: bool) -> dict[str, Any]:
    """The arguments about its name of an op of class ``kind`` whose first input is ``tensor``."""
    if name is not None and not isinstance(name, str):
        refuse(f"{kind}: name is {name!r}; accepted is text or None")
    if _executing_eagerly():
        # Kernels are kept by their attributes: unnamed ops, with equal ones, share a kernel.
        return {"tensor_name": name} if name else {"unnamed": True}
    check_not_compiled(kind)
    if not name:
        name = f"{kind}_{_graph_name(tensor).replace('/', '_')}"
    node = _NOT_IN_NAMES.sub("_", name).strip("/")
    if not node[:1].isalnum():  # what a node's name begins with
        node = "n" + node
    return {"name": node, "ignore_name_scope": True} if ignore_name_scope else {"name": node}


def _graph_name(tensor: Any) -> str:
    try:
        return tensor.name.rsplit(":", 1)[0]
    except AttributeError:  # an eager tensor that the graph captures has none
        return "captured"


def set_id(process_set: ProcessSet | int, operation: str) -> int:
    """Id of a registered set (an id is taken as it is). Raises ArgumentError naming operation, rank and set."""
    if isinstance(process_set, int):
        return process_set
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        who = f" on rank {state.job.rank}" if state.job is not None else ""
        refuse(f"{operation}{who}: {process_set} is not a registered process set; see add_process_set")
    return number


def check_reduction(
    operation: str, dtype: tf.DType, op: int, prescale: float, postscale: float, process_set: ProcessSet | int
) -> None:
    """Raises ArgumentError for what a dtype does not have, NotImplementedError for Adasum on a set whose size is no
    power of two."""
    check_scale(operation, prescale, postscale)
    if op == Adasum:
        if not dtype.is_floating:
            refuse(f"{operation}: op=Adasum is not defined for dtype {dtype.name}; accepted are floating dtypes")
        found = state.process_sets.get(set_id(process_set, operation))
        check_adasum_size(operation, (found.size() if found is not None else None) or 1)
    if (op == Average or prescale != 1.0 or postscale != 1.0) and dtype == tf.bool:
        scaled = f" with prescale_factor={prescale}, postscale_factor={postscale}" if op != Average else ""
        refuse(
            f"{operation}: op={OP_NAMES[op]}{scaled} is not defined for dtype bool; accepted are Sum, Min, Max, "
            "Product without scaling"
        )


def check_root(root_rank: Any, operation: str) -> int:
    """``root_rank`` as an int. Raises ArgumentError for anything that is no integer; the engine checks membership."""
    if isinstance(root_rank, bool) or not hasattr(root_rank, "__index__"):
        refuse(f"{operation}: root_rank is {root_rank!r}; accepted is the world rank of a member, an int")
    return root_rank.__index__()


def as_splits(splits: Any) -> tf.Tensor:
    try:
        dtype = getattr(splits, "dtype", tf.int32)
        made = tf.convert_to_tensor(splits, tf.as_dtype(dtype))
    except (TypeError, ValueError) as error:
        refuse(f"alltoall: splits is {splits!r}; accepted is a list or 1-D tensor of int32 ({error})")
    if made.dtype != tf.int32:
        refuse(f"alltoall: splits has dtype {made.dtype.name}; accepted is int32")
    if made.shape.rank not in (1, None):
        refuse(f"alltoall: splits has {made.shape.rank} dimensions; accepted is 1")
    if made.shape.num_elements() == 0:  # which the op takes for equal parts
        refuse("alltoall: splits is empty; accepted is one entry for each rank of the set, or None for equal parts")
    return made


def check_scatter(operation: str, tensor: tf.Tensor, op: int, prescale: float, postscale: float) -> None:
    try:
        check_op(op, (Average, Sum))
    except ValueError as error:
        refuse(f"{operation}: {error}")
    check_scale(operation, prescale, postscale)
    if tensor.dtype == tf.bool:
        refuse(f"{operation}: dtype bool is not supported; accepted are all others")
    if tensor.shape.rank == 0:
        refuse(f"{operation}: the tensor is a scalar; accepted are tensors with at least one dimension")
