"""Adapter for Keras on TensorFlow, including Keras 2, based on Horovod's TensorFlow frontend."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow.collectives import set_size
from horovod.tensorflow.mpi_ops import _basics
from horovod.tensorflow.reduction import key_of, make_allreduce_grads
from horovod.tensorflow.util import convert_errors

__all__ = ["Compression", "basics", "convert_errors", "frontend", "shutdown"]

basics = _basics
Compression = hvd.Compression
shutdown = hvd.shutdown
WANTS_VARIABLES = True
key = key_of


def reduce_gradients(
    grads: Sequence[Any],
    names: Sequence[str],
    *,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    sparse_as_dense: bool,
    groups: Sequence[Sequence[int]] | None,
    process_set: ProcessSet,
    variables: Sequence[Any],
) -> list[Any]:
    """Reduce gradients, as concurrent operations in a tf.function or as one group in eager mode.

    ``postscale`` must be 1 / ``prescale``, as for Average with ``gradient_predivide_factor``.
    """
    # Name each gradient by its position in the full list, even if some gradients are None, so that the engine can
    # detect ranks with different gradients.
    places = [int(name.rpartition(".")[2]) for name in names]
    all_grads: list[Any] = [None] * (places[-1] + 1)
    all_variables: list[Any] = list(all_grads)
    for place, grad, variable in zip(places, grads, variables, strict=True):
        all_grads[place], all_variables[place] = grad, variable
    reduce = make_allreduce_grads(
        names[0].rpartition(".")[0],
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=postscale,
        groups=None if groups is None else [[variables[i] for i in group] for group in groups],
        process_set=process_set,
    )
    reduced = reduce(all_grads, all_variables)
    return [reduced[place] for place in places]


def check_traceable() -> None:
    """Raise an error if XLA would compile the current function.

    Raises:
        ValueError: If called in a function with jit_compile=True.
    """
    from tensorflow.python.ops import control_flow_util  # TensorFlow has no public API for this check.

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and control_flow_util.GraphOrParentsInXlaContext(graph):
        raise ValueError(
            "jit_compile must be False for a distributed optimizer, got True: XLA cannot run collectives; set "
            "jit_compile=False in model.compile and tf.function"
        )


def scale(grad: Any, factor: float) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(scale(grad.values, factor), grad.indices, grad.dense_shape)
    return grad if factor == 1.0 else grad * tf.cast(factor, grad.dtype)


def divided_by_size(grad: Any, process_set: ProcessSet) -> Any:
    """Divide a gradient by the size of the process set.

    In elastic jobs, the size is read in each step, because traced functions stay in use after it changes.
    """
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(divided_by_size(grad.values, process_set), grad.indices, grad.dense_shape)
    return grad / tf.cast(set_size(process_set, "scale_local_gradients"), grad.dtype)


def weighing() -> Any:
    """Return the functions for averaging gradients weighted by numbers of samples; see ``backend.Adapter.weighing``."""
    return (tf, tf.cast, tf.convert_to_tensor)


def convert(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def allreduce(
    value: Any,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any = Compression.none,
    weight: Any = None,
) -> Any:
    factors = {"prescale_factor": prescale, "postscale_factor": postscale, "weight": weight}
    return _value_of(hvd.allreduce(convert(value), name=name, op=op, compression=compression, **factors))


def allgather(value: Any, name: str | None) -> Any:
    return _value_of(hvd.allgather(convert(value), name=name))


def broadcast(value: Any, root_rank: int, name: str | None) -> Any:
    return _value_of(hvd.broadcast(convert(value), root_rank, name=name))


def reducescatter(value: Any, name: str | None, op: int) -> Any:
    return _value_of(hvd.reducescatter(convert(value), name=name, op=op))


def _value_of(result: Any) -> Any:
    """Return the tensor itself or, in a graph with a session, its evaluated value."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return result
    session = tf.compat.v1.get_default_session() or tf.compat.v1.keras.backend.get_session()
    return session.run(result)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
    done = hvd.broadcast_variables(list(variables), root_rank, process_set)
    if done is not None:
        _value_of(done)


broadcast_global_variables = hvd.broadcast_global_variables


def builds_later() -> bool:
    """Return True in a tf.compat.v1 graph. Its variables have no values until Keras creates a session."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def snapshot(variable: Any, into: Any) -> tf.Tensor:
    """Return the variable's value without copying it.

    A copy is not necessary: tensors are immutable, and the next assignment to the variable allocates new memory.
    """
    inner = getattr(variable, "value", None)
    return tf.identity(inner if isinstance(inner, tf.Variable) else variable)
