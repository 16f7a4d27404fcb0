"""Collectives on NumPy arrays, for frontends whose tensors can be viewed as NumPy arrays.

Inputs are not changed. All functions raise ValueError if an argument is invalid (an unsupported dtype, a name that is
already in flight, a process set without this rank), or if called before ``init``. They raise HorovodInternalError,
which names the tensor and the ranks, if ranks disagree or a rank was lost. ``frontend`` submits the operations. Names
are full names, such as "allreduce.x", the same on all ranks, or "" to match operations by call order.

``start_...`` functions return a ``Pending``.

Common arguments:

- ``names``: full names, such as "allreduce.x", or "" to match operations by call order.
- ``groups``: name of each array's group or "", or an empty list. The arrays of a group complete together.
- ``targets``: arrays that receive the results, in C order and aligned. They can be the sources themselves. If it is
  None, new arrays are created.
- ``then``: function from the list of results to the final result.
- ``blocking``: True if the caller waits right away.

Arrays must not change until the operation is done. All arrays are checked before any is submitted, because an
incomplete group would never finish.
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
    label_of,
    root_of,
    set_id,
    splits_of,
)
from horovod._arrays.handles import Pending, Works, start
from horovod.common.frontends import Frontend
from horovod.common.ops import Sum, check_scale, check_scatter, scattered_rows
from horovod.common.process_sets import ProcessSet

__all__ = [
    "Array",
    "Reduction",
    "allgather_all",
    "allreduce_all",
    "alltoall_all",
    "broadcast_all",
    "check_reduction",
    "code_of",
    "reducescatter_all",
    "root_of",
    "set_id",
]

Then = Callable[[list[Any]], Any]


def plain(array: Any) -> Array:
    """Convert values to an aligned, C-ordered array in host memory, without copying if possible."""
    made = np.asarray(array, order="C")
    return made if made.flags.aligned else made.copy()


def start_allreduce(
    frontend: Frontend,
    arrays: Sequence[Any],
    names: Sequence[str],
    reduction: Reduction,
    groups: Sequence[str] = (),
    targets: Sequence[Array] | None = None,
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Reduce arrays that have the same shape and dtype on all ranks."""
    from horovod._core import KIND_ALLREDUCE

    sources = [plain(array) for array in arrays]
    codes = [
        check_reduction(source.dtype, reduction, label_of(frontend, name, "allreduce"))
        for source, name in zip(sources, names, strict=True)
    ]
    number = set_id(frontend, reduction.process_set, _first(names) or "allreduce")
    results = [np.empty_like(source) for source in sources] if targets is None else list(targets)
    how = (int(reduction.op), 0, float(reduction.prescale), float(reduction.postscale), number, None)
    requests = [
        (KIND_ALLREDUCE, name, _at(source), _at(result), source.shape, code, *how, *group, reduction.wire)
        for source, result, name, code, group in zip(
            sources, results, names, codes, _sized(groups, sources), strict=True
        )
    ]
    return start(frontend, requests, lambda works: then(results), (sources, results), blocking)


def start_broadcast(
    frontend: Frontend,
    arrays: Sequence[Any],
    root_rank: int,
    names: Sequence[str],
    process_set: ProcessSet,
    targets: Sequence[Array] | None = None,
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Broadcast the root's arrays to all ranks. ``root_rank`` is a world rank."""
    from horovod._core import KIND_BROADCAST

    sources = [plain(array) for array in arrays]
    codes = [
        code_of_copied(source.dtype, label_of(frontend, name, "broadcast"))
        for source, name in zip(sources, names, strict=True)
    ]
    what = _first(names) or "broadcast"
    number = set_id(frontend, process_set, what)
    how = (Sum, root_of(root_rank, process_set, label_of(frontend, what, "")), 1.0, 1.0, number, None, "", 0)
    results = [np.empty_like(source) for source in sources] if targets is None else list(targets)
    requests = [
        (KIND_BROADCAST, name, _at(source), _at(result), source.shape, code, *how)
        for source, result, name, code in zip(sources, results, names, codes, strict=True)
    ]
    return start(frontend, requests, lambda works: then(results), (sources, results), blocking)


def start_allgather(
    frontend: Frontend,
    arrays: Sequence[Any],
    names: Sequence[str],
    process_set: ProcessSet,
    groups: Sequence[str] = (),
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Concatenate the arrays of all ranks along dimension 0, which may differ in size between ranks."""
    from horovod._core import KIND_ALLGATHER

    sources = [plain(array) for array in arrays]
    codes = [
        code_of_copied(source.dtype, label_of(frontend, name, "allgather"))
        for source, name in zip(sources, names, strict=True)
    ]
    number = set_id(frontend, process_set, _first(names) or "allgather")
    requests = [
        (KIND_ALLGATHER, name, _at(source), 0, source.shape, code, Sum, 0, 1.0, 1.0, number, None, *group)
        for source, name, code, group in zip(sources, names, codes, _sized(groups, sources), strict=True)
    ]
    return start(frontend, requests, lambda works: then(_outputs(works, sources)), sources, blocking)


def start_alltoall(
    frontend: Frontend,
    arrays: Sequence[Any],
    splits: Any,
    names: Sequence[str],
    process_set: ProcessSet,
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Send each rank of the process set its rows of each array, and pass the rows received to ``then``.

    ``splits[i]`` is the number of rows for rank i. None means equal parts. At least one array is required. ``then``
    gets a list with the received rows of each array, in rank order. The list's last element contains the number of rows
    of the first array that each rank has sent. With splits, these numbers are the same for all arrays.
    """
    from horovod._core import KIND_ALLTOALL

    sources = [plain(array) for array in arrays]
    number = set_id(frontend, process_set, _first(names) or "alltoall")
    requests = []
    for source, name in zip(sources, names, strict=True):
        what = label_of(frontend, name, "alltoall")
        code = code_of_copied(source.dtype, what)
        counts = splits_of(splits, source, process_set.size() or 1, what)
        how = (Sum, 0, 1.0, 1.0, number, counts, "", 0)
        requests.append((KIND_ALLTOALL, name, _at(source), 0, source.shape, code, *how))
    return start(
        frontend,
        requests,
        lambda works: then([*_outputs(works, sources), _counts(works[0].sizes)]),
        sources,
        blocking,
    )


def _counts(sizes: Sequence[int]) -> Array:
    """Convert sizes to an int32 array, or to an int64 array if any size does not fit into int32."""
    return np.array(sizes, np.int32 if max(sizes, default=0) < 2**31 else np.int64)


def start_reducescatter(
    frontend: Frontend,
    arrays: Sequence[Any],
    names: Sequence[str],
    reduction: Reduction,
    groups: Sequence[str] = (),
    then: Then = list,
    blocking: bool = False,
) -> Pending:
    """Reduce arrays over all ranks with Average or Sum, and return this rank's rows.

    If the rows do not divide evenly, the first ranks get one extra row each.
    """
    from horovod._core import KIND_REDUCESCATTER

    sources = [plain(array) for array in arrays]
    codes = [_scattered(frontend, source, name, reduction) for source, name in zip(sources, names, strict=True)]
    number = set_id(frontend, reduction.process_set, _first(names) or "reducescatter")
    results = [_part(source, reduction.process_set) for source in sources]
    how = (int(reduction.op), 0, float(reduction.prescale), float(reduction.postscale), number, None)
    requests = [
        (KIND_REDUCESCATTER, name, _at(source), _at(result), source.shape, code, *how, *group)
        for source, result, name, code, group in zip(
            sources, results, names, codes, _sized(groups, sources), strict=True
        )
    ]
    return start(frontend, requests, lambda works: then(results), (sources, results), blocking)


def _scattered(frontend: Frontend, source: Array, name: str, reduction: Reduction) -> int:
    what = label_of(frontend, name, "reducescatter")
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
    # Handle empty arrays separately, because np.frombuffer rejects empty buffers.
    if work.output is None or work.output.nbytes == 0:
        return np.empty(shape, source.dtype)
    return np.frombuffer(work.output, source.dtype).reshape(shape)


def _sized(groups: Sequence[str], sources: Sequence[Array]) -> list[tuple[str, int]]:
    """Return, for each array, the name and the size of the group it belongs to, or ("", 0) without a group."""
    sizes = {group: list(groups).count(group) for group in set(groups)}
    return [(group, sizes[group] if group else 0) for group in groups] or [("", 0)] * len(sources)


def _first(names: Sequence[str]) -> str:
    return names[0] if names else ""


def _at(array: Array) -> int:
    from horovod._core import address_of

    try:
        # Use the buffer protocol, which is ten times faster than the array's own attributes.
        return address_of(array)
    except ValueError:
        # Use the array's own attributes for dtypes of ml_dtypes, which the buffer protocol does not support.
        address: int = array.__array_interface__["data"][0]
        return address


def allreduce_all(
    frontend: Frontend, arrays: Sequence[Any], names: Sequence[str], reduction: Reduction, groups: Sequence[str] = ()
) -> list[Array]:
    """Reduce all arrays.

    ``groups`` contains the group name of each array, or "" for an array without a group. An empty list means no groups.
    The arrays of a group complete together.
    """
    results: list[Array] = start_allreduce(frontend, arrays, names, reduction, groups, blocking=True).result()
    return results


def broadcast_all(
    frontend: Frontend, arrays: Sequence[Any], root_rank: int, names: Sequence[str], process_set: ProcessSet
) -> list[Array]:
    """Return the root's values for all arrays on every rank. ``root_rank`` is a world rank."""
    if not arrays:
        return []
    results: list[Array] = start_broadcast(frontend, arrays, root_rank, names, process_set, blocking=True).result()
    return results


def allgather_all(
    frontend: Frontend, arrays: Sequence[Any], names: Sequence[str], process_set: ProcessSet, groups: Sequence[str] = ()
) -> list[Array]:
    """Concatenate the arrays of all ranks along dimension 0, which may differ in size between ranks."""
    results: list[Array] = start_allgather(frontend, arrays, names, process_set, groups, blocking=True).result()
    return results


def alltoall_all(
    frontend: Frontend, arrays: Sequence[Any], splits: Any, names: Sequence[str], process_set: ProcessSet
) -> tuple[list[Array], Array]:
    """Send rows of each array to all ranks, and return the received rows.

    ``splits`` has the number of rows of each array for each rank of the set; None means equal parts.

    Returns:
        The received rows of each array in rank order, and the number of the first array's rows received from each rank.
    """
    *outputs, received = start_alltoall(frontend, arrays, splits, names, process_set, blocking=True).result()
    return outputs, received


def reducescatter_all(
    frontend: Frontend, arrays: Sequence[Any], names: Sequence[str], reduction: Reduction, groups: Sequence[str] = ()
) -> list[Array]:
    """Reduce all arrays over all ranks with Average or Sum, and return this rank's rows.

    If the rows do not divide evenly, the first ranks get one extra row each.
    """
    results: list[Array] = start_reducescatter(frontend, arrays, names, reduction, groups, blocking=True).result()
    return results
