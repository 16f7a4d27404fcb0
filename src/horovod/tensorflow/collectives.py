"""Public reductions with support for compression, deprecated arguments and sparse tensors (tf.IndexedSlices)."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.compression import check_wire, refuse_wire, wire_of
from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.frontends import operation_on_rank
from horovod.common.ops import OP_NAMES, Average, Sum, resolve_op
from horovod.common.process_sets import ProcessSet, by_id, global_process_set
from horovod.common.training_loop.weights import check_weight, check_weighted_op, weighted_allreduce
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
    """Return the size of a registered process set.

    The result is an int or, in elastic jobs, an int32 scalar tensor that is evaluated at run time.
    """
    number = set_id(process_set, operation)
    if elastic():
        return size_op(number)
    frontend.require_job()
    found = by_id(number)
    size = found.size() if found is not None else None
    if size is None:
        refuse(f"{operation}: there is no process set {number}")
    return size


def as_weight(weight: Any) -> tf.Tensor:
    """Convert the weight of a weighted average to a float64 scalar tensor."""
    if not tf.is_tensor(weight):
        weight = check_weight(weight)
    return tf.reshape(tf.cast(weight, tf.float64), ())


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
    weight: Any = None,
) -> Any:
    """Reduce a tensor over all ranks.

    The operation is differentiable: the gradient is the same operation on the output gradients.

    Args:
        tensor (tf.Tensor, tf.Variable, array or tf.IndexedSlices): Tensor of any shape, which must be the same on all
            ranks. Values and indices of IndexedSlices are gathered: the result contains the slices of all ranks. With
            ``Average`` their values are divided by the number of ranks; integers become floats.
        average (bool, optional): Deprecated; use ``op``.
        device_dense (str): TensorFlow device for dense tensors. Default: TensorFlow's choice.
        device_sparse (str): TensorFlow device for IndexedSlices. Default: TensorFlow's choice.
        compression (Compressor): Compression for dense tensors, undone after the reduction; see ``Compression``.
            Default: none.
        op (int, optional): ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.
        weight (float or tf.Tensor, optional): This rank's weight, such as a number of samples, 0 or more. The result is
            then ``sum(weight * tensor) / sum(weight)`` over the ranks, computed in float32 or wider, and zeros if all
            weights are 0. A tensor with weight 0 can be NaN. All ranks must pass it, or none. It requires a
            floating-point tensor, ``Average``, and no scale factors. Default: all ranks have the same weight.

    Returns:
        tf.Tensor or tf.IndexedSlices: Reduced tensor, of the same dtype if it is dense.

    Raises:
        ValueError: If an argument is invalid. Also a tf.errors.InvalidArgumentError.
        NotImplementedError: If ``tensor`` is IndexedSlices and ``op`` is not ``Sum`` or ``Average`` or a scale factor
            is given, or if ``op`` is ``Adasum`` and the number of ranks is not a power of two.
        tf.errors.UnknownError: If a rank was lost, or Horovod was shut down.
        tf.errors.FailedPreconditionError: If ranks disagree, or Horovod is not initialized.
    """
    op = resolve_op(op, average, operation_on_rank(frontend, "allreduce"))
    if weight is not None:
        check_weighted_op(op, weight, prescale_factor, postscale_factor)
        if isinstance(tensor, tf.IndexedSlices):
            refuse("allreduce: tensor must be dense with weight, got tf.IndexedSlices; use tf.convert_to_tensor")
        same = {"device_dense": device_dense, "process_set": process_set, "ignore_name_scope": ignore_name_scope}
        add = functools.partial(allreduce, op=Sum, **same)
        how = None if compression is Compression.none else compression
        tensor = as_tensor(tensor, "allreduce")
        mean = weighted_allreduce(tf, tf.cast, tensor, as_weight(weight), add, name, how)
        return tf.ensure_shape(mean, tensor.shape)
    if isinstance(tensor, tf.IndexedSlices):
        wire_of(compression)  # Validate the compression argument here too, although IndexedSlices are not compressed.
        with tf.device(device_sparse or None):
            return _sparse(tensor, name, op, prescale_factor, postscale_factor, process_set, ignore_name_scope)
    tensor = as_tensor(tensor, "allreduce")
    arguments = (name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
    if compression is Compression.none and not device_dense:
        return _allreduce(tensor, *arguments)
    wire = check_wire(compression, tensor, op, operation_on_rank(frontend, "allreduce"), ArgumentError)
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
            "allreduce of tf.IndexedSlices: op must be Average or Sum and the factors must be 1.0, got "
            f"op={OP_NAMES[op]}, prescale_factor={prescale}, postscale_factor={postscale}; or convert it to a dense "
            "tensor with tf.convert_to_tensor"
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
    """Reduce several tensors over all ranks in a single operation.

    Any IndexedSlices are reduced separately and keep their ``dense_shape``.

    Args:
        tensors (Sequence): Tensors, each as in ``allreduce``; the dense ones must have the same dtype.
        average (bool, optional): Deprecated; use ``op``.
        device_dense (str): TensorFlow device for dense tensors. Default: TensorFlow's choice.
        device_sparse (str): TensorFlow device for IndexedSlices. Default: TensorFlow's choice.
        compression (Compressor): Same as in ``allreduce``. Default: none.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the tensors before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.
        name (str, optional): Name that identifies the operation on all ranks.

    Returns:
        list: Reduced tensors, in the order of ``tensors``. Raises the same errors as ``allreduce``.
    """
    op = resolve_op(op, average, operation_on_rank(frontend, "grouped_allreduce"))
    if isinstance(tensors, tf.Tensor) or not hasattr(tensors, "__iter__"):
        refuse(f"grouped_allreduce: tensors must be a list of tensors, got a {type(tensors).__name__}")
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
    wire = check_wire(compression, group[0], op, operation_on_rank(frontend, "grouped_allreduce"), ArgumentError)
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
    """Reduce a tensor over all ranks and return this rank's part of the result along dimension 0.

    Each rank gets consecutive rows, in the order of ranks within the process set. If the rows do not divide evenly,
    each of the first ranks gets one extra row. The operation is differentiable: the output gradients are gathered from
    all ranks and multiplied by the scale factors, and also by the number of ranks if ``op`` is ``Sum``.

    Args:
        tensor (tf.Tensor): Tensor with at least one dimension; the shape must be the same on all ranks.
        device_dense (str): TensorFlow device. Default: TensorFlow's choice.
        compression (Compressor): Compression applied before the reduction and undone after it. Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        tf.Tensor: This rank's rows. Raises the same errors as ``allreduce``.
    """
    refuse_wire(compression, operation_on_rank(frontend, "reducescatter"), ArgumentError)
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
    """Reducescatter several tensors of the same dtype in a single operation.

    Args:
        tensors (Sequence[tf.Tensor]): Tensors, each as in ``reducescatter``.
        device_dense (str): TensorFlow device. Default: TensorFlow's choice.
        compression (Compressor): Same as in ``reducescatter``. Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the tensors before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        name (str, optional): Name that identifies the operation on all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.

    Returns:
        list[tf.Tensor]: This rank's rows of each result. Raises the same errors as ``allreduce``.
    """
    refuse_wire(compression, operation_on_rank(frontend, "grouped_reducescatter"), ArgumentError)
    with tf.device(device_dense or None):
        group = as_tensors(tensors, "grouped_reducescatter")
        pairs = [compression.compress(tensor) for tensor in group]
        compressed = [tensor for tensor, _ in pairs]
        reduced = _grouped_reducescatter(
            compressed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
        )
        return [compression.decompress(tensor, pair[1]) for tensor, pair in zip(reduced, pairs, strict=True)]
