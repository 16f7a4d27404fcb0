"""Functions that synchronize and compare variables and Python objects between ranks."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from horovod.common import in_sync, objects
from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.in_sync import is_own
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.uneven import make_sync
from horovod.tensorflow._library import refuse
from horovod.tensorflow.arguments import DTYPES
from horovod.tensorflow.calls import broadcast
from horovod.tensorflow.collectives import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from horovod.tensorflow.util import _executing_eagerly

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "allreduce",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
    "sync",
]

# Random generators have unsigned state. It is broadcast as signed integers of the same size.
_STAND_INS = {tf.uint32: tf.int32, tf.uint64: tf.int64}


def _is_resource(variable: Any) -> bool:
    return getattr(variable, "handle", None) is not None


def _check_one_kind(variables: Sequence[Any]) -> None:
    """Check that a single operation can overwrite all variables in a list.

    Raises:
        ArgumentError: If the variables differ in kind, device or dtype. The message states the difference.
    """
    kinds = {"resource" if _is_resource(variable) else "reference" for variable in variables}
    if len(kinds) > 1:
        refuse("broadcast_: variables must all be resource variables or all be reference variables, got both")
    devices = sorted({str(variable.device) for variable in variables})
    if len(devices) > 1:
        refuse(f"broadcast_: variables must be on one device, got {', '.join(devices)}")
    dtypes = sorted({variable.dtype.base_dtype.name for variable in variables})
    if kinds == {"reference"} and len(dtypes) > 1:
        refuse(f"broadcast_: reference variables must have one dtype, got {', '.join(dtypes)}")


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables, either all resource or all reference variables, with the root's values.

    Args:
        variables (Sequence): Either resource variables or reference variables, on one device.
        root_rank (int): World rank of the root.
        name (str, optional): Name prefix of the operations.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list: In graphs, the assignments to run. In eager mode the variables are already assigned.

    Raises:
        ValueError: If resource and reference variables are mixed, variables are on several devices, or reference
            variables have several dtypes. Also a tf.errors.InvalidArgumentError.
    """
    variables = list(variables)
    if variables:
        _check_one_kind(variables)
    return _overwrite(variables, root_rank, name or "broadcast_", process_set)


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables with the root's values. Variables can differ in kind and dtype.

    Gradients that a distributed Keras optimizer is still accumulating (``gradient_accumulation_steps``) are not
    changed.

    Args:
        variables (Sequence): Variables of TensorFlow or Keras, in the same order on all ranks.
        root_rank (int): World rank of the root.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        inplace (bool): Ignored; accepted for compatibility.

    Returns:
        tf.Operation or None: In graphs for sessions, the op to run. In eager mode and tf.functions no further action is
            needed.
    """
    del inplace
    shared = [variable for variable in variables if not is_own(variable)]
    written = _overwrite(shared, root_rank, "broadcast_variables", process_set)
    return None if _executing_eagerly() else tf.group(*written)


def _overwrite(variables: list[Any], root_rank: int, name: str, process_set: ProcessSet) -> list[Any]:
    # Number the operations instead of using variable names, which can differ between ranks.
    received = [
        _travel(_plain_variable(variable), root_rank, f"{name}.{i}", process_set)
        for i, variable in enumerate(variables)
    ]
    return [_assign(_plain_variable(variable), value) for variable, value in zip(variables, received, strict=True)]


def _plain_variable(variable: Any) -> Any:
    """Return the TensorFlow variable wrapped by a Keras 3 variable; return other variables unchanged."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def _travel(variable: Any, root_rank: int, name: str, process_set: ProcessSet) -> tf.Tensor:
    value = tf.convert_to_tensor(variable)
    stand_in = _STAND_INS.get(value.dtype)
    if stand_in is not None:
        sent = broadcast(tf.bitcast(value, stand_in), root_rank, name, process_set=process_set)
        return tf.bitcast(sent, value.dtype)
    if value.dtype not in DTYPES:
        refuse(f"broadcast of variable {variable.name!r}: dtype {value.dtype.name} is not supported")
    return broadcast(value, root_rank, name, process_set=process_set)


def _assign(variable: Any, value: tf.Tensor) -> Any:
    if _is_resource(variable):
        return variable.assign(value)
    return tf.compat.v1.assign(variable, value)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return a session op that overwrites all global variables of the graph with the root's values.

    Args:
        root_rank (int): World rank of the root.

    Returns:
        tf.Operation: Op to run once.

    Raises:
        RuntimeError: If called in eager mode, which has no global variables.
    """
    if _executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables works in graphs only: in eager mode call "
            "broadcast_variables(model.variables, root_rank) once the variables exist"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Session hook that broadcasts the root's variables when a session is created.

    The hook runs after the root has initialized or restored its variables.

    Args:
        root_rank (int): World rank of the root.
        device (str): TensorFlow device for the ops. Default: TensorFlow's choice.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the broadcast op to the graph before the session finalizes it."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast in each newly created session."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Broadcast a Python object from the root to all ranks of the process set.

    Args:
        obj (Any): Picklable object to send. Ignored on the other ranks, which may pass None.
        root_rank (int): World rank of the root. Default: 0.
        session (Any): Ignored; accepted for compatibility.
        name (str, optional): Name prefix of the operations.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Any: The root's object.

    Raises:
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    del session
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, frontend)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that broadcasts an object from the root.

    Args:
        root_rank (int): World rank of the root. Default: 0.
        session (Any): Ignored; accepted for compatibility.
        name (str, optional): Name prefix of the operations.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Callable[[Any], Any]: Function that takes an object and returns the root's object.
    """
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather Python objects from all ranks of the process set.

    Args:
        obj (Any): This rank's object, which must be picklable. Types may differ between ranks.
        session (Any): Ignored; accepted for compatibility.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    del session
    return objects.allgather_object(obj, name or "allgather_object", process_set, frontend)


# -- comparison ------------------------------------------------------------------------------------------------------


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit.

    All ranks of the process set must call this. Running statistics of batch normalization differ between ranks and are
    skipped.

    Args:
        *objects: Keras models (which include the optimizer that they are compiled with), layers, optimizers, variables,
            tensors, arrays, numbers, strings, None, and dicts and lists of these.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Additional entries to skip, as paths or patterns such as ``["optimizer.*"]``.
        **named: More objects, whose keywords become their names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: If values differ. Raised on all ranks. The message names the first difference, as in
            ``model.weights[3]``, the ranks, and small values.
        ValueError: If an argument contains nothing that can be compared.
        RuntimeError: If called in a graph or tf.function.
        HorovodInternalError: If a rank was lost.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("check_in_sync works in eager code only, not in graphs and tf.functions")
    read = in_sync.reader(lambda value: value.numpy() if hasattr(value, "numpy") else value)
    return in_sync.check(
        lambda: in_sync.fingerprints(
            in_sync.named(objects, named, in_sync.name_of), read, in_sync.check_ignore(ignore)
        ),
        process_set,
        frontend,
    )


sync = make_sync(frontend)
