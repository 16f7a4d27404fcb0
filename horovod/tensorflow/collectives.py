"""The reductions as users call them: with compression, old arguments, and sparse tensors (tf.IndexedSlices)."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.compression import check_wire, refuse_wire, wire_of
from horovod.common.faces import TENSORFLOW as face
from horovod.common.ops import OP_NAMES, Average, Sum, resolve_op
from horovod.common.process_sets import ProcessSet, by_id, global_process_set
from horovod.common.refusals import said
from horovod.tensorflow._library import ArgumentError, refuse
from horovod.tensorflow.arguments import as_tensor, as_tensors, set_id
from horovod.tensorflow.calls import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    allgather,
    size_op,
)
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.util import elastic

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


def set_size(process_set: ProcessSet | int, operation: str) -> Any:
    """Number of ranks of a registered set: an int, or in elastic jobs an int32 scalar that is read when it runs."""
    number = set_id(process_set, operation)
    if elastic():
        return size_op(number)
    face.require_job()
    found = by_id(number)
    size = found.size() if found is not None else None
    if size is None:
        refuse(f"{operation}: there is no process set {number}")
    return size


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The reduction of all ranks' tensors, on every rank.

    ``tensor``: a tensor, variable or array of any shape, equal on all ranks; or tf.IndexedSlices, whose values and
    indices are gathered, so that the result has the slices of all ranks and, for Average, values divided by the number
    of ranks as TensorFlow divides: those of integers become floats. ``average``: deprecated, use ``op``: Average (the
    default), Sum, Adasum, Min, Max, Product.
    ``compression``: applied before and undone after, to dense tensors. ``prescale_factor``, ``postscale_factor``:
    multiply before and after the reduction. ``device_dense``, ``device_sparse``: where TensorFlow places the ops.

    Returns a tensor of the same dtype, or IndexedSlices. The gradient is the same operation on the gradients. Raises
    NotImplementedError, naming IndexedSlices, for those with other ops or scale factors; else as in mpi_ops.
    """
    op = resolve_op(op, average, said(face, "allreduce"))
    if isinstance(tensor, tf.IndexedSlices):
        wire_of(compression)  # not used, but an error is one here too
        with tf.device(device_sparse or None):
            return _sparse(tensor, name, op, prescale_factor, postscale_factor, process_set, ignore_name_scope)
    tensor = as_tensor(tensor, "allreduce")
    arguments = (name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
    if compression is Compression.none and not device_dense:
        return _allreduce(tensor, *arguments)
    wire = check_wire(compression, tensor, op, said(face, "allreduce"), ArgumentError)
    with tf.device(device_dense or None):
        compressed, context = compression.compress(tensor)
        return compression.decompress(_allreduce(compressed, *arguments, wire), context)


def _sparse(
    slices: tf.IndexedSlices,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> tf.IndexedSlices:
    if op not in (Average, Sum) or prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            f"allreduce of tf.IndexedSlices with op={OP_NAMES[op]}, prescale_factor={prescale}, "
            f"postscale_factor={postscale}; accepted are Average and Sum without scaling (or make it dense: "
            "tf.convert_to_tensor)"
        )
    names = (f"{name}.values", f"{name}.indices") if name else (None, None)
    values = as_tensor(slices.values, "allreduce of IndexedSlices")
    gathered = allgather(values, names[0], ignore_name_scope, process_set)
    indices = allgather(slices.indices, names[1], ignore_name_scope, process_set)
    if op == Average:
        size = set_size(process_set, "allreduce")
        gathered = gathered / tf.cast(size, gathered.dtype)
    return tf.IndexedSlices(gathered, indices, dense_shape=slices.dense_shape)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """``allreduce`` of several tensors, the dense ones of one dtype, that run and complete together; returns a list in
    their order.

    IndexedSlices among them are reduced one by one, and keep their own ``dense_shape``. An empty list comes back as it
    is.
    """
    op = resolve_op(op, average, said(face, "grouped_allreduce"))
    if isinstance(tensors, tf.Tensor) or not hasattr(tensors, "__iter__"):
        refuse(f"grouped_allreduce: tensors is a {type(tensors).__name__}; accepted is a list of tensors")
    wire_of(compression)
    tensors = tensors if isinstance(tensors, list) else list(tensors)
    if not tensors:
        return tensors
    results: list[Any] = list(tensors)
    scales = (prescale_factor, postscale_factor)
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            own = f"{name}.{i}" if name else None
            with tf.device(device_sparse or None):
                results[i] = _sparse(tensor, own, op, *scales, process_set, ignore_name_scope)
    if not dense:
        return results
    group = as_tensors([tensors[i] for i in dense], "grouped_allreduce")
    wire = check_wire(compression, group[0], op, said(face, "grouped_allreduce"), ArgumentError)
    with tf.device(device_dense or None):
        pairs = [compression.compress(tensor) for tensor in group]
        compressed = [tensor for tensor, _ in pairs]
        reduced = _grouped_allreduce(compressed, name, op, *scales, ignore_name_scope, process_set, wire)
        for i, tensor, (_, context) in zip(dense, reduced, pairs, strict=True):
            results[i] = compression.decompress(tensor, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """The reduction of all ranks' tensors (equal shapes, 1 dimension or more), of which each rank gets its part of dim
    0, cut in the order of ranks within the set; the first (dim 0 mod n) ranks get one row more.

    ``op``: Average or Sum. The gradient is the allgather of the gradients, times n for Sum, times the scale factors.
    """
    refuse_wire(compression, said(face, "reducescatter"), ArgumentError)
    with tf.device(device_dense or None):
        compressed, context = compression.compress(as_tensor(tensor, "reducescatter"))
        reduced = _reducescatter(
            compressed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
        )
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """``reducescatter`` of several tensors of one dtype that run and complete together."""
    refuse_wire(compression, said(face, "grouped_reducescatter"), ArgumentError)
    with tf.device(device_dense or None):
        group = as_tensors(tensors, "grouped_reducescatter")
        pairs = [compression.compress(tensor) for tensor in group]
        compressed = [tensor for tensor, _ in pairs]
        reduced = _grouped_reducescatter(
            compressed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
        )
        return [compression.decompress(tensor, pair[1]) for tensor, pair in zip(reduced, pairs, strict=True)]
