"""Collectives on NumPy arrays that return at once, what they stand for as a ``Pending``.

``names``: full ones ("allreduce.x") or "", which are matched by the order of calls. ``groups``: for each array the name
of its group or "", empty for none; the arrays of a group complete together. ``targets``: where results go, in C order
and aligned like the sources, which may be the sources themselves; None: new arrays. ``then``: what the results, a list,
are to become. ``blocking``: the caller waits right away. Arrays must stay as they are until the operation is done.

Errors as in ``collectives``; all arrays are checked before any is submitted: half a group would wait for the other half
for ever.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from horovod._arrays.checks import (
    Array,
    Reduction,
    check_reduction,
    code_of,
    code_of_copied,
    root_of,
    set_id,
    splits_of,
    whose,
)
from horovod._arrays.pending import Pending, Works, start
from horovod.common.faces import Face
from horovod.common.ops import Sum, check_scale, check_scatter, scattered_rows
from horovod.common.process_sets import ProcessSet

Then = Callable[[list[Any]], Any]


def plain(array: Any) -> Array:
    """Its values in C order, aligned, in host memory; without a copy where they are so already."""
    made = np.asarray(array, order="C")
    return made if made.flags.aligned else made.copy()


def start_allreduce(
    face: Face,
    arrays: Sequence[Any],
    names: Sequence[str],
    reduction: Reduction,
    groups: Sequence[str] = (),
    targets: Sequence[Array] | None = None,
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Every rank gets the reduction of all ranks' arrays, of equal shape and dtype."""
    from horovod._core import KIND_ALLREDUCE

    sources = [plain(array) for array in arrays]
    codes = [
        check_reduction(source.dtype, reduction, whose(face, name, "allreduce"))
        for source, name in zip(sources, names, strict=True)
    ]
    number = set_id(face, reduction.process_set, _first(names) or "allreduce")
    results = [np.empty_like(source) for source in sources] if targets is None else list(targets)
    how = (int(reduction.op), 0, float(reduction.prescale), float(reduction.postscale), number, None)
    requests = [
        (KIND_ALLREDUCE, name, _at(source), _at(result), source.shape, code, *how, *group, reduction.wire)
        for source, result, name, code, group in zip(
            sources, results, names, codes, _sized(groups, sources), strict=True
        )
    ]
    return start(face, requests, lambda works: then(results), (sources, results), blocking)


def start_broadcast(
    face: Face,
    arrays: Sequence[Any],
    root_rank: int,
    names: Sequence[str],
    process_set: ProcessSet,
    targets: Sequence[Array] | None = None,
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Every rank gets the root's arrays. ``root_rank``: world rank."""
    from horovod._core import KIND_BROADCAST

    sources = [plain(array) for array in arrays]
    codes = [
        code_of_copied(source.dtype, whose(face, name, "broadcast"))
        for source, name in zip(sources, names, strict=True)
    ]
    what = _first(names) or "broadcast"
    number = set_id(face, process_set, what)
    how = (Sum, root_of(root_rank, process_set, whose(face, what, "")), 1.0, 1.0, number, None, "", 0)
    results = [np.empty_like(source) for source in sources] if targets is None else list(targets)
    requests = [
        (KIND_BROADCAST, name, _at(source), _at(result), source.shape, code, *how)
        for source, result, name, code in zip(sources, results, names, codes, strict=True)
    ]
    return start(face, requests, lambda works: then(results), (sources, results), blocking)


def start_allgather(
    face: Face,
    arrays: Sequence[Any],
    names: Sequence[str],
    process_set: ProcessSet,
    groups: Sequence[str] = (),
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Every rank gets the arrays of all ranks, which may differ in dim 0, concatenated along it."""
    from horovod._core import KIND_ALLGATHER

    sources = [plain(array) for array in arrays]
    codes = [
        code_of_copied(source.dtype, whose(face, name, "allgather"))
        for source, name in zip(sources, names, strict=True)
    ]
    number = set_id(face, process_set, _first(names) or "allgather")
    requests = [
        (KIND_ALLGATHER, name, _at(source), 0, source.shape, code, Sum, 0, 1.0, 1.0, number, None, *group)
        for source, name, code, group in zip(sources, names, codes, _sized(groups, sources), strict=True)
    ]
    return start(face, requests, lambda works: then(_outputs(works, sources)), sources, blocking)


def start_alltoall(
    face: Face,
    arrays: Sequence[Any],
    splits: Any,
    names: Sequence[str],
    process_set: ProcessSet,
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """This rank's rows go to all ranks, ``splits[i]`` of each array to the set's rank i, equal parts where it is None.
    ``then`` gets [of each array what came, in the order of ranks; the rows of the first one that came from each rank:
    the same for all arrays if there are splits]. There has to be an array."""
    from horovod._core import KIND_ALLTOALL

    sources = [plain(array) for array in arrays]
    number = set_id(face, process_set, _first(names) or "alltoall")
    requests = []
    for source, name in zip(sources, names, strict=True):
        what = whose(face, name, "alltoall")
        code = code_of_copied(source.dtype, what)
        counts = splits_of(splits, source, process_set.size() or 1, what)
        how = (Sum, 0, 1.0, 1.0, number, counts, "", 0)
        requests.append((KIND_ALLTOALL, name, _at(source), 0, source.shape, code, *how))
    return start(
        face,
        requests,
        lambda works: then([*_outputs(works, sources), _counts(works[0].sizes)]),
        sources,
        blocking,
    )


def _counts(sizes: Sequence[int]) -> Array:
    """Return ``sizes`` as an array of int32, or of int64 where one needs it."""
    return np.array(sizes, np.int32 if max(sizes, default=0) < 2**31 else np.int64)


def start_reducescatter(
    face: Face,
    arrays: Sequence[Any],
    names: Sequence[str],
    reduction: Reduction,
    groups: Sequence[str] = (),
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """This rank's rows of the reduction (Average or Sum) of all ranks' arrays; the first ranks get one row more when
    dim 0 does not divide."""
    from horovod._core import KIND_REDUCESCATTER

    sources = [plain(array) for array in arrays]
    codes = [_scattered(face, source, name, reduction) for source, name in zip(sources, names, strict=True)]
    number = set_id(face, reduction.process_set, _first(names) or "reducescatter")
    results = [_part(source, reduction.process_set) for source in sources]
    how = (int(reduction.op), 0, float(reduction.prescale), float(reduction.postscale), number, None)
    requests = [
        (KIND_REDUCESCATTER, name, _at(source), _at(result), source.shape, code, *how, *group)
        for source, result, name, code, group in zip(
            sources, results, names, codes, _sized(groups, sources), strict=True
        )
    ]
    return start(face, requests, lambda works: then(results), (sources, results), blocking)


def _scattered(face: Face, source: Array, name: str, reduction: Reduction) -> int:
    what = whose(face, name, "reducescatter")
    code = code_of(source.dtype, what)
    check_scatter(what, code, source.ndim, reduction.op)
    check_scale(what, reduction.prescale, reduction.postscale)
    return code


def _part(source: Array, process_set: ProcessSet) -> Array:
    rows = scattered_rows(source.shape[0], process_set.rank() or 0, process_set.size() or 1)
    return np.empty((rows, *source.shape[1:]), source.dtype)


def _outputs(works: Works, sources: Sequence[Array]) -> list[Array]:
    return [_output(work, source) for work, source in zip(works, sources, strict=True)]


def _output(work: Any, source: Array) -> Array:
    shape = (sum(work.sizes), *source.shape[1:])
    if work.output is None or work.output.nbytes == 0:  # np.frombuffer refuses empty ones
        return np.empty(shape, source.dtype)
    return np.frombuffer(work.output, source.dtype).reshape(shape)


def _sized(groups: Sequence[str], sources: Sequence[Array]) -> list[tuple[str, int]]:
    """For each source the name of its group and how many members that has."""
    sizes = {group: list(groups).count(group) for group in set(groups)}
    return [(group, sizes[group] if group else 0) for group in groups] or [("", 0)] * len(sources)


def _first(names: Sequence[str]) -> str:
    return names[0] if names else ""


def _at(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]  # array.ctypes.data takes three times as long
    return address
