"""Collectives of the JAX frontend on concrete and traced arrays and pytrees.

Concrete arrays are converted to NumPy, without a copy if they are in CPU memory. For traced arrays, the collective
becomes part of the compiled program (``horovod._jax``), where gradients, ``vmap``, ``scan`` and ``cond`` work. One rank
can run collectives eagerly while other ranks run them in compiled programs, if each call depends on the previous one.

For an invalid argument, all functions raise a ValueError that names the argument, its value, the accepted values and
the rank. If ranks disagree or a rank was lost, they raise a HorovodInternalError that names the tensor and the ranks.
In compiled programs it becomes a JAX error with the same message.
"""

from collections.abc import Sequence
from typing import Any

from jax import numpy as jnp
from jax import tree_util

from horovod._arrays import collectives as arrays
from horovod._arrays.collectives import Reduction
from horovod._core import (
    KIND_ALLGATHER,
    KIND_ALLTOALL,
    KIND_BARRIER,
    KIND_BROADCAST,
    KIND_REDUCESCATTER,
)
from horovod._jax import calls
from horovod._jax.compression import Compression
from horovod.common import dtypes
from horovod.common.compression import refuse_wire
from horovod.common.frontends import JAX as frontend
from horovod.common.frontends import refusing
from horovod.common.ops import Average, Sum, check_parts, check_scale, check_scatter, resolve_op, scattered_rows
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.weights import check_weighted_op
from horovod.jax.arrays import flat, full_names, to_copy, to_reduce
from horovod.jax.reductions import call_of, count_of, groups_of, reduce_leaves, reduce_weighted

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


@refusing(frontend)
def allreduce(
    tree: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: Any = None,
) -> Any:
    """Reduce an array or pytree over all ranks.

    The arrays of a pytree are sent together. The operation is differentiable: the gradient is the same reduction of the
    output gradients.

    Args:
        tree (pytree): Arrays and numbers, with the same structure, shapes and dtypes on all ranks. Supported dtypes are
            bool, integers, and floats of 8 bits (reduced as float32), 16, 32 and 64 bits.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        compression (Compressor): Compression applied before the reduction and undone after it; see ``Compression``.
            Default: none.
        op (int, optional): ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor (float): Factor applied to the input before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        weight (float or scalar array, optional): This rank's weight, such as a number of samples, 0 or more. The result
            is then ``sum(weight * tree) / sum(weight)`` over the ranks, computed in float32 or wider, and zeros if all
            weights are 0. Arrays with weight 0 can be NaN. All ranks must pass it, or none. It requires floating-point
            arrays, ``Average``, and no scale factors. Default: all ranks count alike.

    Returns:
        pytree: Reduced JAX arrays, in the structure of ``tree``.

    Raises:
        ValueError: If an argument is invalid, or Horovod is not initialized.
        NotImplementedError: If ``op`` is ``Adasum`` and the number of ranks is not a power of two.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost. A compiled program raises a JAX
            error with the same message instead.
    """
    how = (compression, prescale_factor, postscale_factor, process_set)
    op = resolve_op(op, average, "allreduce")
    if weight is None:
        return _allreduce(tree, "allreduce", name, op, *how)
    check_weighted_op(op, weight, prescale_factor, postscale_factor)
    leaves, places, structure = flat(tree)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"tree must contain only floating-point arrays with weight, got {leaf.dtype}")
    names, key = full_names("allreduce", name, places), f"allreduce.{name}.weight" if name else ""
    means, _ = reduce_weighted(leaves, names, key, count_of(weight), compression, process_set)
    return structure.unflatten(means)


@refusing(frontend)
def grouped_allreduce(
    tree: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the arrays of a pytree over all ranks as a group.

    No array is reduced before all ranks have submitted all arrays.

    Args:
        tree (pytree): Same as in ``allreduce``.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        compression (Compressor): Same as in ``allreduce``. Default: none.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the input before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree: Reduced JAX arrays. Raises the same errors as ``allreduce``.
    """
    how = (compression, prescale_factor, postscale_factor, process_set)
    op = resolve_op(op, average, "grouped_allreduce")
    return _allreduce(tree, "grouped_allreduce", name or "noname", op, *how, grouped=True)


def _allreduce(
    tree: Any,
    operation: str,
    name: str | None,
    op: int,
    compression: Any,
    prescale: Any,
    postscale: Any,
    process_set: ProcessSet,
    grouped: bool = False,
) -> Any:
    leaves, places, structure = flat(tree)
    names = full_names(operation, name, places)
    return structure.unflatten(reduce_leaves(leaves, names, op, compression, prescale, postscale, process_set, grouped))


@refusing(frontend)
def broadcast(tree: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Broadcast the root's arrays to all ranks.

    The operation is differentiable. On the root, the gradient is the average of the ranks' output gradients. On other
    ranks, it is zero.

    Args:
        tree (pytree): Arrays and numbers, with the same structure, shapes and dtypes on all ranks. Unsigned 32- and
            64-bit integers are supported too.
        root_rank (int): World rank of the root, which must be in ``process_set``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree: The root's values as JAX arrays. Raises the same errors as ``allreduce``.
    """
    leaves, places, structure = flat(tree)
    names = full_names("broadcast", name, places)
    return structure.unflatten(broadcast_leaves(leaves, names, root_rank, process_set))


def broadcast_leaves(leaves: Sequence[Any], names: Sequence[str], root_rank: int, process_set: ProcessSet) -> list[Any]:
    """Broadcast arrays from the root rank, under the given operation names."""
    if not leaves:
        return []
    what = names[0] or "broadcast"
    sent = [to_copy(leaf) for leaf in leaves]
    tensors = [tensor for tensor, _ in sent]
    if calls.is_traced(tensors):
        number = _checked(tensors, names, process_set, what)
        root = arrays.root_of(root_rank, process_set, what)
        received = calls.run(call_of(KIND_BROADCAST, names, number, root=root), tensors)
    else:
        values = arrays.broadcast_all(frontend, tensors, root_rank, names, process_set)
        received = [jnp.asarray(one) for one in values]
    return [restore(one) for one, (_, restore) in zip(received, sent, strict=True)]


@refusing(frontend)
def allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the arrays of all ranks along dimension 0, in rank order.

    The operation is differentiable: the gradient is this rank's rows of the average of the ranks' output gradients.

    Args:
        tree (pytree): Arrays with at least one dimension. The size of dimension 0 can differ between ranks, except in a
            compiled program, where shapes are fixed.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree: Concatenated JAX arrays. Raises the same errors as ``allreduce``.
    """
    leaves, places, structure = flat(tree)
    return structure.unflatten(_gather(leaves, full_names("allgather", name, places), process_set))


@refusing(frontend)
def grouped_allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Allgather the arrays of a pytree as a group.

    Gathering starts only when all ranks have submitted all arrays.

    Args:
        tree (pytree): Same as in ``allgather``.
        name (str, optional): Same as in ``allgather``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree: Concatenated JAX arrays. Raises the same errors as ``allreduce``.
    """
    leaves, places, structure = flat(tree)
    names = full_names("grouped_allgather", name or "noname", places)
    return structure.unflatten(_gather(leaves, names, process_set, grouped=True))


def _gather(leaves: list[Any], names: list[str], process_set: ProcessSet, grouped: bool = False) -> list[Any]:
    if not leaves:
        return []
    what = names[0] or "allgather"
    sent = [to_copy(leaf) for leaf in leaves]
    tensors = [_with_rows(tensor, name or what) for (tensor, _), name in zip(sent, names, strict=True)]
    if calls.is_traced(tensors):
        number = _checked(tensors, names, process_set, what)
        rows = tuple(tensor.shape[0] * _size(process_set) for tensor in tensors)
        groups = tuple(groups_of(names, grouped))
        gathered = calls.run(call_of(KIND_ALLGATHER, names, number, rows=rows, groups=groups), tensors)
    else:
        values = arrays.allgather_all(frontend, tensors, names, process_set, groups_of(names, grouped))
        gathered = [jnp.asarray(one) for one in values]
    return [restore(one) for one, (_, restore) in zip(gathered, sent, strict=True)]


@refusing(frontend)
def alltoall(
    tree: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows of each array to each rank, and return the received rows in rank order.

    In a compiled program, ``splits`` must be None and all ranks must have the same number of rows.

    Args:
        tree (pytree): Arrays with at least one dimension.
        splits (Sequence[int] or array, optional): Number of rows of each array for each rank of the process set.
            Without it, dimension 0 is split into equal parts.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree or tuple: Received rows, or (rows, received_splits) if ``splits`` is given. ``received_splits`` has the
            number of rows received from each rank.

    Raises:
        ValueError: If an argument is invalid. Other errors are those of ``allreduce``.
    """
    leaves, places, structure = flat(tree)
    names = full_names("alltoall", name, places)
    sent = [to_copy(leaf) for leaf in leaves]
    tensors = [_with_rows(tensor, name or "alltoall") for (tensor, _), name in zip(sent, names, strict=True)]
    if not leaves and splits is not None:
        raise ValueError(
            "alltoall: splits must be None for a tree without arrays, "
            f"got {splits!r} on rank {frontend.require_job().rank}"
        )
    received: Any = None
    if not leaves:
        parts = []
    elif calls.is_traced(tensors):
        parts = _exchanged_in_program(tensors, splits, names, process_set)
    else:
        parts, received = arrays.alltoall_all(frontend, tensors, splits, names, process_set)
    rows = [restore(jnp.asarray(part)) for part, (_, restore) in zip(parts, sent, strict=True)]
    result = structure.unflatten(rows)
    return result if splits is None else (result, jnp.asarray(received))


def _exchanged_in_program(tensors: list[Any], splits: Any, names: list[str], process_set: ProcessSet) -> list[Any]:
    what, rank = names[0] or "alltoall", frontend.require_job().rank
    if splits is not None:
        raise NotImplementedError(
            f"{what}: splits must be None in a program that JAX compiles, because the shape of the result must be "
            f"known, got splits on rank {rank}"
        )
    number = _checked(tensors, names, process_set, what)
    for tensor, name in zip(tensors, names, strict=True):
        check_parts(f"{name or 'alltoall'} on rank {rank}", tensor.shape[0], _size(process_set))
    rows = tuple(tensor.shape[0] for tensor in tensors)
    return calls.run(call_of(KIND_ALLTOALL, names, number, rows=rows), tensors)


@refusing(frontend)
def reducescatter(
    tree: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce an array or pytree over all ranks and return this rank's rows of the result.

    If the rows do not divide evenly, the first ranks get one extra row each.

    Args:
        tree (pytree): Arrays with at least one dimension, with the same structure, shapes and dtypes on all ranks.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        compression (Compressor): Same as in ``allreduce``. Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the input before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        pytree: This rank's rows as JAX arrays. Raises the same errors as ``allreduce``.
    """
    leaves, places, structure = flat(tree)
    names = full_names("reducescatter", name, places)
    how = (compression, op, process_set, prescale_factor, postscale_factor)
    return structure.unflatten(_scatter(leaves, names, *how))


@refusing(frontend)
def grouped_reducescatter(
    tree: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reducescatter the arrays of a pytree as a group.

    The reduction starts only when all ranks have submitted all arrays.

    Args:
        tree (pytree): Same as in ``reducescatter``.
        name (str, optional): Same as in ``reducescatter``.
        compression (Compressor): Same as in ``allreduce``. Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the input before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        pytree: This rank's rows as JAX arrays. Raises the same errors as ``allreduce``.
    """
    leaves, places, structure = flat(tree)
    names = full_names("grouped_reducescatter", name or "noname", places)
    how = (compression, op, process_set, prescale_factor, postscale_factor)
    return structure.unflatten(_scatter(leaves, names, *how, grouped=True))


def _scatter(
    leaves: list[Any],
    names: list[str],
    compression: Any,
    op: int,
    process_set: ProcessSet,
    prescale: Any,
    postscale: Any,
    grouped: bool = False,
) -> list[Any]:
    if not leaves:
        return []
    refuse_wire(compression, names[0] or "reducescatter")
    compressed = [compression.compress(leaf) for leaf in leaves]
    check_scale(names[0] or "reducescatter", prescale, postscale)
    scaled = (float(prescale), float(postscale)) != (1.0, 1.0)
    pairs = zip(compressed, names, strict=True)
    sent = [to_reduce(tensor, op, scaled, name or "reducescatter") for (tensor, _), name in pairs]
    tensors = [_with_rows(tensor, name or "reducescatter") for (tensor, _), name in zip(sent, names, strict=True)]
    reduction = Reduction(op, process_set, float(prescale), float(postscale))
    if calls.is_traced(tensors):
        what = names[0] or "reducescatter"
        number = _checked(tensors, names, process_set, what)
        for tensor in tensors:
            check_scatter(what, arrays.code_of(tensor.dtype, what), tensor.ndim, op)
        place = process_set.rank() or 0, _size(process_set)
        rows = tuple(scattered_rows(tensor.shape[0], *place) for tensor in tensors)
        scales = {"prescale": reduction.prescale, "postscale": reduction.postscale}
        options = {"op": int(op), "rows": rows, "groups": tuple(groups_of(names, grouped)), **scales}
        parts = calls.run(call_of(KIND_REDUCESCATTER, names, number, **options), tensors)
    else:
        values = arrays.reducescatter_all(frontend, tensors, names, reduction, groups_of(names, grouped))
        parts = [jnp.asarray(one) for one in values]
    results = zip(parts, sent, compressed, strict=True)
    return [compression.decompress(restore(one), context) for one, (_, restore), (_, context) in results]


@refusing(frontend)
def barrier(tree: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    """Wait until all ranks of the process set have called ``barrier``.

    In a compiled program, the barrier returns ``tree``, and computations that use the result run after the barrier.

    Args:
        tree (pytree, optional): Arrays to return.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree: ``tree``.
    """
    leaves, structure = tree_util.tree_flatten(tree)
    number = arrays.set_id(frontend, process_set, "barrier")
    if calls.is_traced(leaves):
        names = ["barrier.noname"] + [""] * (len(leaves) - 1)
        return structure.unflatten(
            calls.run(call_of(KIND_BARRIER, names, number), [jnp.asarray(leaf) for leaf in leaves])
        )
    for leaf in leaves:
        getattr(leaf, "block_until_ready", lambda: None)()
    request = (KIND_BARRIER, "barrier.noname", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)
    frontend.run(*request).wait()
    return tree


def _checked(tensors: Sequence[Any], names: Sequence[str], process_set: ProcessSet, what: str) -> int:
    """Check the dtypes of the arrays and the process set.

    Returns:
        Id of the process set.

    Raises:
        ValueError: If a dtype is not supported, or the set does not contain this rank.
    """
    for tensor, name in zip(tensors, names, strict=True):
        arrays.code_of(tensor.dtype, name or what)
    return arrays.set_id(frontend, process_set, what)


def _with_rows(tensor: Any, what: str) -> Any:
    if tensor.ndim == 0:
        raise ValueError(
            f"{what}: the tensor must have at least one dimension, got a scalar on rank {frontend.require_job().rank}"
        )
    return tensor


def _size(process_set: ProcessSet) -> int:
    return process_set.size() or 1
