"""Process queries, broadcasts of arrays and objects, and comparison of values between ranks."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from horovod._arrays import handles
from horovod._arrays.checks import label_of
from horovod._arrays.collectives import start_broadcast
from horovod.common import in_sync, objects
from horovod.common.basics import HorovodBasics
from horovod.common.dtypes import class_name
from horovod.common.frontends import NUMPY as frontend
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.uneven import make_sync
from horovod.numpy import repeats
from horovod.numpy.arguments import take


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite arrays with the root's values on every rank of the process set.

    Args:
        params (Mapping or list): Arrays; a mapping is processed in the order of its keys.
        root_rank (int): World rank of the root. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: If the type of ``params`` is not supported. The message names its type.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    if isinstance(params, Mapping):
        named = [(str(key), params[key]) for key in sorted(params)]
    elif isinstance(params, list | tuple):
        named = [(f"parameter.{index}", array) for index, array in enumerate(params)]
    else:
        what = label_of(frontend, "", "broadcast_parameters")
        raise ValueError(f"{what}: params must be a dict or a list of arrays, got a {class_name(params)}")
    names = [f"broadcast.{name}" for name, _ in named]
    givens = [
        take(array, label_of(frontend, name, ""), in_place=True) for name, (_, array) in zip(names, named, strict=True)
    ]
    arrays = [given.array for given in givens]
    results = start_broadcast(frontend, arrays, root_rank, names, process_set, targets=arrays, blocking=True).result()
    for given, result in zip(givens, results, strict=True):
        given.put_back(result)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast a Python object from the root to all ranks of the process set.

    Args:
        obj (Any): Picklable object to send. Ignored on the other ranks, which can pass None.
        root_rank (int): World rank of the root. Default: 0.
        name (str, optional): Prefix of the names of the two operations, ``<name>.sz`` and ``<name>.t``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Any: The root's object.

    Raises:
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, frontend=frontend)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gather Python objects from all ranks of the process set.

    Args:
        obj (Any): This rank's object, which must be picklable. Types can differ between ranks.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    return objects.allgather_object(obj, name or "allgather_object", process_set, frontend=frontend)


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit.

    All ranks of the process set must call this.

    Args:
        *objects: Arrays, numbers, strings, None, and dicts and lists of these.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Entries to skip, as paths or patterns such as ``["model.head.*"]``.
        **named: More objects. Their keywords are used as names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: If values differ. Raised on all ranks. The message names the first difference, the ranks, and
            small values.
        ValueError: If an argument contains nothing that can be compared.
        HorovodInternalError: If a rank was lost.
    """
    read = in_sync.reader(lambda value: value)
    return in_sync.check(
        lambda: in_sync.fingerprints(
            in_sync.named(objects, named, in_sync.name_of), read, in_sync.check_ignore(ignore)
        ),
        process_set,
        frontend,
    )


basics = HorovodBasics("numpy")

init = basics.init
rank = basics.rank
size = basics.size


def shutdown() -> None:
    """Shut down Horovod in this process and stop its engine.

    Handles of unfinished operations then raise an error. See ``horovod.common.basics`` for details.
    """
    basics.shutdown()
    handles.forget()
    repeats.forget()


sync = make_sync(frontend)
