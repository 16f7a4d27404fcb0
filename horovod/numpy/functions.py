"""Bringing every rank to the root's state: arrays, and any Python object; and comparing what ranks have."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from horovod._arrays.checks import whose
from horovod._arrays.starting import start_broadcast
from horovod.common import in_sync, objects
from horovod.common.faces import NUMPY as face
from horovod.common.foreign import kind_of
from horovod.common.in_sync import fingerprints, variables
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.numpy.arguments import take


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrites the arrays ``params`` on every rank of the set with the root's values.

    ``params``: a dict of arrays, taken in the order of its keys, or a list of them. ``root_rank``: world rank. Raises
    ValueError for anything else, naming its type; HorovodInternalError when ranks disagree or one is lost.
    """
    if isinstance(params, Mapping):
        named = [(str(key), params[key]) for key in sorted(params)]
    elif isinstance(params, list | tuple):
        named = [(f"parameter.{index}", array) for index, array in enumerate(params)]
    else:
        what = whose(face, "", "broadcast_parameters")
        raise ValueError(f"{what}: params is a {kind_of(params)}; accepted are a dict and a list of arrays")
    names = [f"broadcast.{name}" for name, _ in named]
    givens = [take(array, whose(face, name, ""), in_place=True) for name, (_, array) in zip(names, named, strict=True)]
    arrays = [given.array for given in givens]
    results = start_broadcast(face, arrays, root_rank, names, process_set, targets=arrays, blocking=True).result()
    for given, result in zip(givens, results, strict=True):
        given.put_back(result)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's ``obj`` on every rank of the set; the others may pass anything, None for example.

    ``name``: prefix of the two operations, ``<name>.sz`` and ``<name>.t``. See ``horovod.common.objects``.
    """
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face=face)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks of the set, by rank within it. Types may differ between ranks."""
    return objects.allgather_object(obj, name or "allgather_object", process_set, face=face)


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Raises OutOfSyncError, on all ranks, unless all hold the same, bit for bit; all ranks of the set call it.

    ``objects``, ``named``: arrays, numbers, texts, None, and dicts and lists of these. The error names the first
    difference, the ranks, and small values; keywords give the names there. ``ignore``: what to leave out, paths or
    patterns as in ``["model.head.*"]``.

    Returns the SHA-256 of what was compared, in hexadecimal. Raises ValueError naming an argument of which nothing
    could be compared; HorovodInternalError when a rank is lost.
    """
    read = variables.reader(lambda value: value)
    return in_sync.check(
        lambda: fingerprints.table(
            fingerprints.named(objects, named, variables.name_of), read, fingerprints.check_ignore(ignore)
        ),
        process_set,
        face,
    )
