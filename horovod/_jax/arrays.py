"""Collectives on NumPy arrays, for values that exist already: metrics, weights, gradients outside compiled programs.

All raise ValueError for what cannot work (a dtype, a name in flight, a process set without this rank, before init) and
HorovodInternalError, naming tensor and ranks, when ranks disagree or one is lost. ``name``: text that all ranks give
alike, or None: matched by the order of calls. Inputs are not changed.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod.common import dtypes
from horovod.common.faces import KERAS as face
from horovod.common.ops import Sum, check_op, check_scale, check_scatter, wire_name
from horovod.common.ops import check_reduction as check_reduction_of
from horovod.common.process_sets import ProcessSet

Array = np.ndarray[Any, Any]

_parked: list[Any] = []  # memory of interrupted operations, which goes on being used until the job ends


@dataclass(frozen=True)
class Reduction:
    """How arrays are reduced. Numbers as in horovod/_core.pyi."""

    op: int
    process_set: ProcessSet
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = 0


def code_of(dtype: Any, what: str) -> int:
    """The engine's code for a NumPy dtype (JAX's are such). Raises ValueError naming ``what``, the dtype and those
    accepted."""
    name = np.dtype(dtype).name
    if name not in dtypes.CODES:
        raise ValueError(f"{what}: dtype {name} is not supported; accepted are {dtypes.SUPPORTED}")
    return dtypes.CODES[name]


def set_id(process_set: ProcessSet, what: str) -> int:
    """Id of a registered set that has this rank. Raises ValueError naming ``what``, set and rank for another one."""
    rank = face.require_job().rank
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{what} on rank {rank}: {process_set} is not a registered process set; see add_process_set")
    if process_set.rank() is None:
        raise ValueError(f"{what}: rank {rank} is not in {process_set}")
    return number


def root_of(root_rank: Any, process_set: ProcessSet, what: str) -> int:
    """``root_rank`` as an int. Raises ValueError naming ``what``, the root and the set when it is no member's."""
    try:
        root = operator.index(root_rank)
    except TypeError:
        root = -1
    if root not in (process_set.ranks or ()):
        raise ValueError(f"{what}: root_rank is {root_rank!r}; accepted are the ranks of {process_set}")
    return root


def check_reduction(dtype: Any, reduction: Reduction, what: str) -> int:
    """``code_of`` for a dtype that can be reduced so. Raises ValueError naming ``what``, op, dtype and what is
    accepted."""
    code = code_of(dtype, what)
    op = check_op(reduction.op)
    check_scale(what, reduction.prescale, reduction.postscale)
    size = reduction.process_set.size() or 1
    check_reduction_of(what, code, op, reduction.prescale, reduction.postscale, size)
    return code


def allreduce_all(
    arrays: Sequence[Any], names: Sequence[str], reduction: Reduction, groups: Sequence[str] = ()
) -> list[Array]:
    """Reduces all arrays at once. ``names``: full ones ("allreduce.x") or "". ``groups``: for each array the name of
    its group or "", empty for none; the arrays of a group complete together."""
    from horovod._core import KIND_ALLREDUCE

    sources = [_plain(array) for array in arrays]
    codes = [check_reduction(a.dtype, reduction, n or "allreduce") for a, n in zip(sources, names, strict=True)]
    number = set_id(reduction.process_set, "allreduce")
    targets = [np.empty_like(source) for source in sources]
    groups = groups or [""] * len(sources)
    sizes = {group: groups.count(group) for group in set(groups)}
    how = (reduction.op, 0, float(reduction.prescale), float(reduction.postscale), number, None)
    members = zip(sources, targets, names, codes, groups, strict=True)
    _run(
        [
            (KIND_ALLREDUCE, n, _at(s), _at(t), s.shape, c, *how, g, sizes[g] if g else 0, reduction.wire)
            for s, t, n, c, g in members
        ],
        (sources, targets),
    )
    return targets


def broadcast_all(arrays: Sequence[Any], root_rank: int, names: Sequence[str], process_set: ProcessSet) -> list[Array]:
    """The root's values of all arrays, on every rank. ``root_rank``: world rank. ``names``: full ones or ""."""
    from horovod._core import KIND_BROADCAST

    if not arrays:
        return []
    sources = [_plain(array) for array in arrays]
    codes = [_code_of_copied(source.dtype, name or "broadcast") for source, name in zip(sources, names, strict=True)]
    what = names[0] or "broadcast"
    number = set_id(process_set, what)
    how = (Sum, root_of(root_rank, process_set, what), 1.0, 1.0, number, None, "", 0)
    targets = [np.empty_like(source) for source in sources]
    members = zip(sources, targets, names, codes, strict=True)
    _run([(KIND_BROADCAST, n, _at(s), _at(t), s.shape, c, *how) for s, t, n, c in members], (sources, targets))
    return targets


def allgather(array: Any, name: str | None, process_set: ProcessSet) -> Array:
    """The arrays of all ranks, which may differ in dim 0, concatenated along it."""
    from horovod._core import KIND_ALLGATHER

    source, full = _plain(array), wire_name("allgather", name)
    code = _code_of_copied(source.dtype, full or "allgather")
    number = set_id(process_set, full or "allgather")
    how = (Sum, 0, 1.0, 1.0, number, None, "", 0)
    (work,) = _run([(KIND_ALLGATHER, full, _at(source), 0, source.shape, code, *how)], source)
    shape = (sum(work.sizes), *source.shape[1:])
    if work.output is None or work.output.nbytes == 0:  # np.frombuffer refuses empty ones
        return np.empty(shape, source.dtype)
    return np.frombuffer(work.output, source.dtype).reshape(shape)


def reducescatter(array: Any, name: str | None, reduction: Reduction) -> Array:
    """This rank's rows of the reduction (Average or Sum) of all arrays; the first ranks get one row more when dim 0
    does not divide."""
    from horovod._core import KIND_REDUCESCATTER

    source, full = _plain(array), wire_name("reducescatter", name)
    what = full or "reducescatter"
    code = code_of(source.dtype, what)
    check_scatter(what, code, source.ndim, reduction.op)
    check_scale(what, reduction.prescale, reduction.postscale)
    number = set_id(reduction.process_set, what)
    rank, size = reduction.process_set.rank() or 0, reduction.process_set.size() or 1
    rows, longer = divmod(source.shape[0], size)
    target = np.empty((rows + (rank < longer), *source.shape[1:]), source.dtype)
    how = (reduction.op, 0, float(reduction.prescale), float(reduction.postscale), number, None, "", 0)
    _run([(KIND_REDUCESCATTER, full, _at(source), _at(target), source.shape, code, *how)], (source, target))
    return target


def _plain(array: Any) -> Array:
    """Its values in order, in host memory; without a copy where they are already."""
    return np.asarray(array, order="C")


def _at(array: Array) -> int:
    return array.ctypes.data


# What is only copied needs no arithmetic: the seeds of Keras are uint32, which the engine does not have.
_TWINS = {"uint32": dtypes.INT32, "uint64": dtypes.INT64}


def _code_of_copied(dtype: Any, what: str) -> int:
    twin = _TWINS.get(np.dtype(dtype).name)
    return code_of(dtype, what) if twin is None else twin


def _run(requests: Iterable[tuple[Any, ...]], keep: Any) -> list[Any]:
    """Submits all requests, waits for all and returns their works. ``keep``: the memory that they use.

    One that fails or is refused does not keep the others back, since the other ranks wait for those; the first failure
    is raised in the end.
    """
    works: list[Any] = []
    failure: Exception | None = None
    try:
        for request in requests:
            try:
                works.append(face.submit(*request))
            except Exception as error:
                failure = failure or error
        for work in works:
            try:
                work.wait()
            except Exception as error:
                failure = failure or error
    except BaseException:  # Ctrl-C ends the wait, not the operations
        _parked.append((works, keep))
        raise
    if failure is not None:
        raise failure
    return works
