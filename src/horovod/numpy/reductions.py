"""Allreduce and reducescatter of single arrays and groups of arrays."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod._arrays.checks import Reduction, label_of, set_id
from horovod._arrays.collectives import start_allreduce, start_reducescatter
from horovod._arrays.handles import Handle, Pending, start
from horovod.common.compression import check_wire, refuse_wire
from horovod.common.frontends import NUMPY as frontend
from horovod.common.ops import Average, Sum, resolve_op, wire_name
from horovod.common.ops import grouped_names as group_names
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.weights import check_weight, check_weighted_op, weighted_allreduce
from horovod.numpy.arguments import Argument, Array, take, take_all
from horovod.numpy.compression import Compression
from horovod.numpy.repeats import remember, run, run_first


def _op_label(operation: str, name: str | None) -> str:
    """Return the start of an error message about an argument."""
    return label_of(frontend, wire_name(operation, name), operation)


def _reduction(op: Any, average: Any, what: str, process_set: ProcessSet, prescale: Any, postscale: Any) -> Reduction:
    return Reduction(resolve_op(op, average, what), process_set, prescale, postscale)


def _one(argument: Argument, name: str | None, reduction: Reduction, in_place: bool, blocking: bool = False) -> Pending:
    return start_allreduce(
        frontend,
        [argument.array],
        [wire_name("allreduce", name)],
        reduction,
        targets=[argument.array] if in_place else None,
        then=lambda results: argument.put_back(results[0]) if in_place else results[0],
        blocking=blocking,
    )


def _group(givens: list[Argument], name: str | None, reduction: Reduction, in_place: bool) -> Pending:
    if not givens:
        return start(frontend, [], lambda works: [], None)
    group, members = _members("grouped_allreduce", name, len(givens), reduction.process_set)
    arrays = [given.array for given in givens]
    return start_allreduce(
        frontend,
        arrays,
        members,
        reduction,
        [group] * len(arrays),
        targets=arrays if in_place else None,
        then=lambda results: [g.put_back(r) for g, r in zip(givens, results, strict=True)] if in_place else results,
    )


def _members(operation: str, name: str | None, count: int, process_set: ProcessSet) -> tuple[str, list[str]]:
    return group_names(frontend, operation, name, count, set_id(frontend, process_set, operation))


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
) -> Array:
    """Reduce an array over all ranks and return the result as a new array.

    Args:
        tensor (array): NumPy array, or another object accepted by ``arguments``. Shape and dtype must be the same on
            all ranks.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        compression (Compressor): Compression applied before the reduction and undone after it; see ``Compression``.
            Default: none.
        op (int, optional): ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum`` (floating-point
            arrays on 2, 4, 8, ... ranks).
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        weight (float, optional): This rank's weight, such as a number of samples, 0 or more. The result is then
            ``sum(weight * tensor) / sum(weight)`` over the ranks, computed in float32 or wider, and zeros if all
            weights are 0. An array with weight 0 can be NaN. All ranks must pass it, or none. It requires a
            floating-point array, ``Average``, and no scale factors. Default: all ranks count alike.

    Returns:
        numpy.ndarray: New array with the result.

    Raises:
        ValueError: If an argument is invalid, or Horovod is not initialized.
        NotImplementedError: If ``op`` is ``Adasum`` and the number of ranks is not a power of two.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    how = (op, prescale_factor, postscale_factor, process_set)
    if average is None and weight is None and compression is Compression.none:
        again = run(name, tensor, None, *how)
        if again is not None:
            return again
    what = _op_label("allreduce", name)
    op = resolve_op(op, average, what)
    argument = take(tensor, what)
    if weight is not None:
        check_weighted_op(op, weight, prescale_factor, postscale_factor)
        count = np.asarray(check_weight(weight))
        add = functools.partial(allreduce, op=Sum, process_set=process_set)
        how = None if compression is Compression.none else compression
        return weighted_allreduce(np, lambda array, dtype: array.astype(dtype), argument.array, count, add, name, how)
    wire = check_wire(compression, argument.array, op, what)
    packed, context = compression.compress(argument.array)
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor, wire)
    pending = _one(take(packed, what), name, reduction, in_place=False, blocking=True)
    result = pending.result()
    if average is None and compression is Compression.none:
        remember(pending.works[0], name, tensor, *how)
    return compression.decompress(result, context)


@run_first
def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce an array over all ranks, in place.

    Args:
        tensor (array): Array to reduce, as in ``allreduce``. It is overwritten with the result.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        array: ``tensor``. Raises the same errors as ``allreduce``.
    """
    how = (op, prescale_factor, postscale_factor, process_set)
    reduction = _reduction(op, average, _op_label("allreduce", name), process_set, prescale_factor, postscale_factor)
    pending = _one(take(tensor, _op_label("allreduce", name), in_place=True), name, reduction, True, blocking=True)
    result = pending.result()
    if average is None:
        remember(pending.works[0], name, tensor, *how)
    return result


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce whose result is a new array, without waiting.

    Args:
        tensor (array): Same as in ``allreduce``. Do not change it before the handle is done.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of the reduced array. Raises the same errors as ``allreduce``.
    """
    reduction = _reduction(op, average, _op_label("allreduce", name), process_set, prescale_factor, postscale_factor)
    return Handle(_one(take(tensor, _op_label("allreduce", name)), name, reduction, in_place=False))


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce in place, without waiting.

    Args:
        tensor (array): Array to reduce, as in ``allreduce``. It is overwritten with the result. Do not use it before
        the handle is done.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of ``tensor``. Raises the same errors as ``allreduce``.
    """
    reduction = _reduction(op, average, _op_label("allreduce", name), process_set, prescale_factor, postscale_factor)
    return Handle(_one(take(tensor, _op_label("allreduce", name), in_place=True), name, reduction, in_place=True))


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several arrays over all ranks as a group, and return new arrays.

    Args:
        tensors (Sequence[array]): Arrays, each as in ``allreduce``.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        compression (Compressor): Same as in ``allreduce``. Default: none.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[numpy.ndarray]: New arrays. Raises the same errors as ``allreduce``.
    """
    what = _op_label("grouped_allreduce", name)
    op = resolve_op(op, average, what)
    givens = take_all(tensors, what)
    wire = 0
    for given in givens:
        wire = check_wire(compression, given.array, op, what)
    pairs = [compression.compress(given.array) for given in givens]
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor, wire)
    results = _group([take(packed, what) for packed, _ in pairs], name, reduction, in_place=False).result()
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce several arrays over all ranks as a group, in place.

    Args:
        tensors (Sequence[array]): Arrays to reduce, as in ``allreduce``. They are overwritten with the results.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list: ``tensors`` as a list. Raises the same errors as ``allreduce``.
    """
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return handle.result()


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce of several arrays as a group that returns new arrays, without waiting.

    Args:
        tensors (Sequence[array]): Arrays, each as in ``allreduce``. Do not change them before the handle is done.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of the list of reduced arrays. Raises the same errors as ``allreduce``.
    """
    reduction = _reduction(
        op, average, _op_label("grouped_allreduce", name), process_set, prescale_factor, postscale_factor
    )
    return Handle(_group(take_all(tensors, _op_label("grouped_allreduce", name)), name, reduction, in_place=False))


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce of several arrays as a group, in place, without waiting.

    Args:
        tensors (Sequence[array]): Arrays to reduce, as in ``allreduce``. They are overwritten with the results. Do not
        use them before the handle is done.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of ``tensors`` as a list. Raises the same errors as ``allreduce``.
    """
    reduction = _reduction(
        op, average, _op_label("grouped_allreduce", name), process_set, prescale_factor, postscale_factor
    )
    return Handle(_group(take_all(tensors, _op_label("grouped_allreduce", name), True), name, reduction, in_place=True))


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce an array over all ranks and return this rank's part of the result along dimension 0.

    Each rank gets consecutive rows, in the order of ranks. If the rows do not divide evenly, the first ranks get one
    extra row each.

    Args:
        tensor (array): Array with at least one dimension. Shape and dtype must be the same on all ranks.
        name (str, optional): Same as in ``allreduce``.
        compression (Compressor): Same as in ``allreduce``. Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        numpy.ndarray: This rank's rows. Raises the same errors as ``allreduce``.
    """
    what = _op_label("reducescatter", name)
    refuse_wire(compression, what)
    packed, context = compression.compress(take(tensor, what).array)
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(_scatter(take(packed, what), name, reduction, blocking=True).result(), context)


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a reducescatter of an array, without waiting.

    Args:
        tensor (array): Same as in ``reducescatter``. Do not change it before the handle is done.
        name (str, optional): Same as in ``allreduce``.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        Handle: Future of this rank's rows. Raises the same errors as ``allreduce``.
    """
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor)
    return Handle(_scatter(take(tensor, _op_label("reducescatter", name)), name, reduction))


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reducescatter several arrays as a group.

    No array is reduced until all ranks have submitted all arrays.

    Args:
        tensors (Sequence[array]): Arrays, each as in ``reducescatter``.
        name (str, optional): Same as in ``allreduce``.
        compression (Compressor): Same as in ``allreduce``. Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.

    Returns:
        list[numpy.ndarray]: This rank's rows of each result. Raises the same errors as ``allreduce``.
    """
    what = _op_label("grouped_reducescatter", name)
    refuse_wire(compression, what)
    pairs = [compression.compress(given.array) for given in take_all(tensors, what)]
    packed = [array for array, _ in pairs]
    results = grouped_reducescatter_async(packed, name, op, process_set, prescale_factor, postscale_factor).result()
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a reducescatter of several arrays as a group, without waiting.

    Args:
        tensors (Sequence[array]): Arrays, each as in ``reducescatter``. Do not change them before the handle is done.
        name (str, optional): Same as in ``allreduce``.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.

    Returns:
        Handle: Future of the list of this rank's rows. Raises the same errors as ``allreduce``.
    """
    arrays = [given.array for given in take_all(tensors, _op_label("grouped_reducescatter", name))]
    if not arrays:
        return Handle(start(frontend, [], lambda works: [], None))
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor)
    group, members = _members("grouped_reducescatter", name, len(arrays), process_set)
    return Handle(start_reducescatter(frontend, arrays, members, reduction, [group] * len(arrays)))


def _scatter(argument: Argument, name: str | None, reduction: Reduction, blocking: bool = False) -> Pending:
    names = [wire_name("reducescatter", name)]
    return start_reducescatter(frontend, [argument.array], names, reduction, then=lambda r: r[0], blocking=blocking)
