"""allreduce and reducescatter of arrays, alone and in groups.

All forms share these arguments. ``tensor``: see ``arguments``; of equal shape and dtype on all ranks. ``average``:
deprecated, use ``op``. ``name``: matches the operation between ranks; without it operations are matched by the order
they are issued in. ``op``: Average (the default), Sum, Min, Max, Product, or Adasum for floats on 2, 4, 8, ... ranks.
``prescale_factor``, ``postscale_factor``: multiply the input before, the result after the reduction. ``process_set``:
the ranks that take part. ``compression``: applied before and undone after, see ``Compression``.

All raise ValueError for what cannot work, and HorovodInternalError when ranks disagree or one is lost: blocking forms
themselves, the others from the handle. An array must be left alone until its handle is done.
"""

from collections.abc import Sequence
from typing import Any

from horovod._arrays.checks import Reduction, set_id, whose
from horovod._arrays.handles import Handle
from horovod._arrays.pending import Pending, start
from horovod._arrays.starting import start_allreduce, start_reducescatter
from horovod.common.compression import check_wire, refuse_wire
from horovod.common.faces import NUMPY as face
from horovod.common.groups import names as group_names
from horovod.common.ops import Average, resolve_op, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.numpy.arguments import Array, Given, take, take_all
from horovod.numpy.compression import Compression


def _said(operation: str, name: str | None) -> str:
    """What messages about an argument begin with."""
    return whose(face, wire_name(operation, name), operation)


def _reduction(op: Any, average: Any, what: str, process_set: ProcessSet, prescale: Any, postscale: Any) -> Reduction:
    return Reduction(resolve_op(op, average, what), process_set, prescale, postscale)


def _one(given: Given, name: str | None, reduction: Reduction, in_place: bool, blocking: bool = False) -> Pending:
    return start_allreduce(
        face,
        [given.array],
        [wire_name("allreduce", name)],
        reduction,
        targets=[given.array] if in_place else None,
        then=lambda results: given.put_back(results[0]) if in_place else results[0],
        blocking=blocking,
    )


def _group(givens: list[Given], name: str | None, reduction: Reduction, in_place: bool) -> Pending:
    if not givens:
        return start(face, [], lambda works: [], None)
    group, members = _members("grouped_allreduce", name, len(givens), reduction.process_set)
    arrays = [given.array for given in givens]
    return start_allreduce(
        face,
        arrays,
        members,
        reduction,
        [group] * len(arrays),
        targets=arrays if in_place else None,
        then=lambda results: [g.put_back(r) for g, r in zip(givens, results, strict=True)] if in_place else results,
    )


def _members(operation: str, name: str | None, count: int, process_set: ProcessSet) -> tuple[str, list[str]]:
    return group_names(face, operation, name, count, set_id(face, process_set, operation))


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Allreduce into a new array."""
    what = _said("allreduce", name)
    op = resolve_op(op, average, what)
    given = take(tensor, what)
    wire = check_wire(compression, given.array, op, what)
    packed, context = compression.compress(given.array)
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor, wire)
    result = _one(take(packed, what), name, reduction, in_place=False, blocking=True).result()
    return compression.decompress(result, context)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Allreduce in place; returns ``tensor``."""
    reduction = _reduction(op, average, _said("allreduce", name), process_set, prescale_factor, postscale_factor)
    given = take(tensor, _said("allreduce", name), in_place=True)
    return _one(given, name, reduction, in_place=True, blocking=True).result()


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts an allreduce into a new array."""
    reduction = _reduction(op, average, _said("allreduce", name), process_set, prescale_factor, postscale_factor)
    return Handle(_one(take(tensor, _said("allreduce", name)), name, reduction, in_place=False))


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts an allreduce in place; the handle's result is ``tensor``, which has its values only then."""
    reduction = _reduction(op, average, _said("allreduce", name), process_set, prescale_factor, postscale_factor)
    return Handle(_one(take(tensor, _said("allreduce", name), in_place=True), name, reduction, in_place=True))


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
    """Allreduce of several arrays that run and complete together, into new ones."""
    what = _said("grouped_allreduce", name)
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
    """Allreduce of several arrays together, in place; returns them as a list."""
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
    """Starts an allreduce of several arrays together; one handle, whose result is a list."""
    reduction = _reduction(
        op, average, _said("grouped_allreduce", name), process_set, prescale_factor, postscale_factor
    )
    return Handle(_group(take_all(tensors, _said("grouped_allreduce", name)), name, reduction, in_place=False))


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like ``grouped_allreduce_async``, in place."""
    reduction = _reduction(
        op, average, _said("grouped_allreduce", name), process_set, prescale_factor, postscale_factor
    )
    return Handle(_group(take_all(tensors, _said("grouped_allreduce", name), True), name, reduction, in_place=True))


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """This rank's part of dim 0 of the reduction (Average or Sum) of all ranks' arrays; the first (dim 0 mod n) ranks
    get one row more."""
    what = _said("reducescatter", name)
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
    """Starts a reducescatter."""
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor)
    return Handle(_scatter(take(tensor, _said("reducescatter", name)), name, reduction))


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reducescatter of several arrays that run and complete together."""
    what = _said("grouped_reducescatter", name)
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
    """Starts a reducescatter of several arrays together; one handle, whose result is a list."""
    arrays = [given.array for given in take_all(tensors, _said("grouped_reducescatter", name))]
    if not arrays:
        return Handle(start(face, [], lambda works: [], None))
    reduction = Reduction(op, process_set, prescale_factor, postscale_factor)
    group, members = _members("grouped_reducescatter", name, len(arrays), process_set)
    return Handle(start_reducescatter(face, arrays, members, reduction, [group] * len(arrays)))


def _scatter(given: Given, name: str | None, reduction: Reduction, blocking: bool = False) -> Pending:
    names = [wire_name("reducescatter", name)]
    return start_reducescatter(face, [given.array], names, reduction, then=lambda r: r[0], blocking=blocking)
