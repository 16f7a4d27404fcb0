"""Bringing every rank to the root's state: variables, in eager mode and in sessions, and any Python object."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common import objects
from horovod.common.faces import TENSORFLOW as face
from horovod.common.own_variables import is_own
from horovod.common.process_sets import ProcessSet, global_process_set
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
]

# Random generators keep their state in these, which travel as the signed ones of the same size.
_STAND_INS = {tf.uint32: tf.int32, tf.uint64: tf.int64}


def _is_resource(variable: Any) -> bool:
    return getattr(variable, "handle", None) is not None


def _check_one_kind(variables: Sequence[Any]) -> None:
    """Raises ArgumentError when variables cannot be overwritten in one operation, naming what differs."""
    kinds = {"resource" if _is_resource(variable) else "reference" for variable in variables}
    if len(kinds) > 1:
        refuse("broadcast_: some variables are resource variables, others reference variables; accepted is one kind")
    devices = sorted({str(variable.device) for variable in variables})
    if len(devices) > 1:
        refuse(f"broadcast_: the variables are on the devices {', '.join(devices)}; accepted is one device")
    dtypes = sorted({variable.dtype.base_dtype.name for variable in variables})
    if kinds == {"reference"} and len(dtypes) > 1:
        refuse(f"broadcast_: the reference variables have dtypes {', '.join(dtypes)}; accepted is one dtype")


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrites ``variables`` with the root's values; ``root_rank``: world rank.

    Returns, in graphs, the assignments to run; in eager mode it is done. Raises ArgumentError, a ValueError, when
    resource and reference variables are mixed, for variables on several devices and for reference variables of several
    dtypes.
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
    """Overwrites ``variables``, of any kinds and dtypes that can travel, with the values of ``root_rank`` (world rank).

    ``variables``: in the same order on all ranks; Keras' own are accepted. Gradients that a distributed optimizer of
    Keras still accumulates (``gradient_accumulation_steps``) stay those of their rank. ``inplace``: accepted for
    compatibility, no copy is saved by it. Returns an op to run in graphs; in eager mode and in tf.functions it is done
    by itself.
    """
    del inplace
    shared = [variable for variable in variables if not is_own(variable)]
    written = _overwrite(shared, root_rank, "broadcast_variables", process_set)
    return None if _executing_eagerly() else tf.group(*written)


def _overwrite(variables: list[Any], root_rank: int, name: str, process_set: ProcessSet) -> list[Any]:
    # Names count, since those of variables depend on what else a rank has made before.
    received = [
        _travel(_plain_variable(variable), root_rank, f"{name}.{i}", process_set)
        for i, variable in enumerate(variables)
    ]
    return [_assign(_plain_variable(variable), value) for variable, value in zip(variables, received, strict=True)]


def _plain_variable(variable: Any) -> Any:
    """TensorFlow's variable inside one of Keras 3, else ``variable`` itself."""
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
    """Op, for sessions, that overwrites all global variables of the graph with those of ``root_rank`` (world rank).

    Raises RuntimeError in eager mode, which knows no global variables.
    """
    if _executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables works in graphs only: in eager mode call "
            "broadcast_variables(model.variables, root_rank) once the variables exist"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Brings all ranks to the root's variables once a session is there: initialised, or restored on the root alone."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """``root_rank``: world rank. ``device``: where TensorFlow places the ops."""
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the op to the graph, which is finished after that."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it, in each new session of a job."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's ``obj`` on every rank of the set; the others may pass anything, None for example.

    ``session``: accepted for compatibility, none is needed. See ``horovod.common.objects``.
    """
    del session
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function ``obj -> the root's obj``, with the arguments of ``broadcast_object``."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks of the set, by rank within it. Types may differ between ranks."""
    del session
    return objects.allgather_object(obj, name or "allgather_object", process_set, face)
