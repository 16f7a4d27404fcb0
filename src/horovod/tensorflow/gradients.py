"""Gradients of Horovod's TensorFlow ops. Importing this module registers them.

The gradients are built from the same ops, so they are differentiable too. The gradient of a reduction is the same
reduction of the output gradients. An allgather's gradient is averaged, as in the original Horovod, although the
mathematically correct gradient is the sum.
"""

from typing import Any

import tensorflow as tf

from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.ops import Average, Sum, check_differentiable
from horovod.common.process_sets import by_id
from horovod.tensorflow import calls
from horovod.tensorflow._library import refuse
from horovod.tensorflow.collectives import set_size
from horovod.tensorflow.util import elastic


def _naming(op: Any) -> dict[str, Any]:
    """Return the name and process set for the gradient of ``op``, which are the same on all ranks."""
    arguments = {
        "process_set": op.get_attr("process_set_id"),
        "ignore_name_scope": op.get_attr("ignore_name_scope"),
        "name": None,
    }
    name = op.get_attr("tensor_name")
    if name:
        arguments["name"] = tf.compat.as_str(name) + ".gradient"
    elif not op.get_attr("unnamed"):
        # A gradient tape passes a substitute for the op, without its name. Outputs of the substitute refer to the real
        # op in the graph.
        node = getattr(getattr(op.outputs[0], "op", None), "name", None) if not tf.executing_eagerly() else None
        arguments["name"] = node and node.rsplit("/", 1)[-1] + ".gradient"
    return arguments


def _like(tensor: Any, gradient: Any) -> Any:
    """Cast the gradient to its tensor's dtype, because TensorFlow can pass it in a different floating-point dtype."""
    gradient = tf.convert_to_tensor(gradient)
    return gradient if gradient.dtype == tensor.dtype else tf.cast(gradient, tensor.dtype)


def _all_like(op: Any, gradients: Any) -> list[Any]:
    return [_like(tensor, gradient) for tensor, gradient in zip(op.inputs, gradients, strict=True)]


def _reduction(op: Any) -> dict[str, Any]:
    check_differentiable(f"gradient of {op.type}", op.get_attr("reduce_op"))
    return {
        "op": op.get_attr("reduce_op"),
        "prescale_factor": calls.factor_of(op, "prescale"),
        "postscale_factor": calls.factor_of(op, "postscale"),
    }


@tf.RegisterGradient("HorovodAllreduce")
def _of_allreduce(op: Any, gradient: Any) -> Any:
    return calls._allreduce(_like(op.inputs[0], gradient), wire=op.get_attr("wire"), **_reduction(op), **_naming(op))


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _of_grouped_allreduce(op: Any, *gradients: Any) -> Any:
    return calls._grouped_allreduce(_all_like(op, gradients), wire=op.get_attr("wire"), **_reduction(op), **_naming(op))


@tf.RegisterGradient("HorovodAllgather")
def _of_allgather(op: Any, gradient: Any) -> Any:
    return _own_parts(op, op.inputs, [calls._allreduce(_like(op.inputs[0], gradient), op=Average, **_naming(op))])[0]


@tf.RegisterGradient("HorovodGroupedAllgather")
def _of_grouped_allgather(op: Any, *gradients: Any) -> Any:
    return _own_parts(op, op.inputs, calls._grouped_allreduce(_all_like(op, gradients), op=Average, **_naming(op)))


def _own_parts(op: Any, inputs: Any, gathered: list[Any]) -> list[Any]:
    """Return the rows of each tensor in ``gathered`` that this rank contributed."""
    naming = _naming(op)
    naming["name"] = naming["name"] and naming["name"] + ".sizes"
    rows = tf.stack([tf.shape(tensor)[0] for tensor in inputs])
    # Number of rows from each rank in each tensor, with shape (ranks, tensors).
    all_rows = calls.allgather(rows[tf.newaxis], **naming)
    begins = tf.reduce_sum(all_rows[: _own_rank(naming["process_set"])], axis=0)
    parts = []
    for i, (tensor, whole) in enumerate(zip(inputs, gathered, strict=True)):
        part = whole[begins[i] : begins[i] + rows[i]]
        part.set_shape(tensor.shape)
        parts.append(part)
    return parts


def _own_rank(process_set_id: int) -> Any:
    """Return this rank's index in a process set.

    For the global set of an elastic job, the index is a tensor that is evaluated at run time.
    """
    if process_set_id == 0 and elastic():
        return calls.rank_op()
    found = by_id(process_set_id)
    rank = found.rank() if found is not None else None
    if rank is None:
        refuse(f"gradient of allgather: this rank is not in process set {process_set_id}")
    return rank


@tf.RegisterGradient("HorovodBroadcast")
def _of_broadcast(op: Any, gradient: Any) -> Any:
    averaged = calls._allreduce(_like(op.inputs[0], gradient), op=Average, **_naming(op))
    # Other ranks must not return constant zeros: TensorFlow could prune their allreduce, and the root would wait
    # forever. Select between the two values, so that second derivatives depend on the allreduce too.
    with tf.control_dependencies([averaged]):
        zeros = tf.zeros_like(averaged)
    rank = calls.rank_op() if elastic() else frontend.require_job().rank
    return tf.where(tf.equal(rank, op.get_attr("root_rank")), averaged, zeros)


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_grad(op: Any, grad_wrt_output: Any, grad_wrt_received_splits: Any) -> Any:
    """Return the gradient with respect to an alltoall's input, and None for its splits.

    Third-party code imports this function.
    """
    gradient = _like(op.inputs[0], grad_wrt_output)
    back, _ = calls.alltoall(gradient, op.outputs[1], **_naming(op))
    # Pad with zeros, because rows beyond the sum of the splits were not sent and have no gradient.
    missing = tf.shape(op.inputs[0])[0] - tf.shape(back)[0]
    paddings = tf.concat([[[0, missing]], tf.zeros([tf.rank(back) - 1, 2], tf.int32)], axis=0)
    back = tf.pad(back, paddings)
    back.set_shape(op.inputs[0].shape)
    return back, None


def _scatter_scale(op: Any) -> Any:
    """Return the factor by which to scale the gathered gradients, which are the gradient of a reducescatter."""
    reduction = _reduction(op)
    scale = reduction["prescale_factor"] * reduction["postscale_factor"]
    if reduction["op"] != Sum:
        return scale
    size = set_size(op.get_attr("process_set_id"), "gradient of reducescatter")
    return scale * (tf.cast(size, tf.float64) if isinstance(size, tf.Tensor) else size)


def _scaled(gathered: Any, scale: Any) -> Any:
    return gathered if isinstance(scale, float) and scale == 1.0 else gathered * tf.cast(scale, gathered.dtype)


def _gathered(op: Any, gradients: list[Any]) -> list[Any]:
    """Gather the output gradients of all ranks, which is the gradient of a reducescatter.

    The gradient of this gather is a sum over the ranks. That of the public allgather is an average.

    Returns:
        Gradients of the inputs.
    """
    naming = _naming(op)
    again = {**naming, "name": naming["name"] and naming["name"] + ".gradient"}
    grouped = len(gradients) > 1

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather(*parts: Any) -> Any:
        wholes = calls.grouped_allgather(list(parts), **naming) if grouped else [calls.allgather(*parts, **naming)]

        def scatter(*grads: Any) -> Any:
            if grouped:
                return calls._grouped_reducescatter(list(grads), op=Sum, **again)
            return [calls._reducescatter(*grads, op=Sum, **again)]

        return wholes, scatter

    return list(gather(*gradients))


@tf.RegisterGradient("HorovodReducescatter")
def _of_reducescatter(op: Any, gradient: Any) -> Any:
    gathered = _scaled(_gathered(op, [_like(op.inputs[0], gradient)])[0], _scatter_scale(op))
    gathered.set_shape(op.inputs[0].shape)
    return gathered


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _of_grouped_reducescatter(op: Any, *gradients: Any) -> Any:
    scale = _scatter_scale(op)
    gathered = [_scaled(part, scale) for part in _gathered(op, _all_like(op, gradients))]
    for part, tensor in zip(gathered, op.inputs, strict=True):
        part.set_shape(tensor.shape)
    return gathered


for _constant in (
    "HorovodJoin",
    "HorovodSize",
    "HorovodProcessSetIncluded",
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodLocalSize",
):
    tf.no_gradient(_constant)
