"""Broadcasts of parameters and objects, allgather of objects, and parameter names that match between ranks.

MXNet numbers layers in the order in which a process creates them: ``dense12_weight`` on one rank can be
``dense0_weight`` on a rank that has created no other model. It also sorts parameters as strings, so ``dense10_weight``
precedes ``dense9_weight``, and positions differ too. To match names between ranks, this module replaces each number in
a name by its index among the sorted numbers at the same place.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from horovod.common import objects
from horovod.common.frontends import MXNET as frontend
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.arguments import code_of, refusing
from horovod.mxnet.operations import broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


@refusing
def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast a Python object from the root to all ranks of the process set, and wait for it.

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
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, frontend)


@refusing
def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gather Python objects from all ranks of the process set, and wait for them.

    Args:
        obj (Any): This rank's object, which must be picklable. Types can differ between ranks.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    return objects.allgather_object(obj, name or "allgather_object", process_set, frontend)


_NUMBERED = re.compile(r"(.*?)(\d+)$")


def on_the_wire(names: Iterable[str]) -> dict[str, str]:
    """Map each name to a name that does not depend on other layers that the process has created.

    For example, ``dense9_weight`` and ``dense10_weight`` become ``dense0_weight`` and ``dense1_weight``. Different
    names remain different.

    Returns:
        Names to use in operations, by the given names.
    """
    names = list(names)
    seen: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for name in names:
        for before, part in _parts(name):
            if match := _NUMBERED.match(part):
                seen.setdefault((before, match[1]), set()).add((int(match[2]), match[2]))
    places = {key: {text: str(place) for place, (_, text) in enumerate(sorted(found))} for key, found in seen.items()}

    def written(before: str, part: str) -> str:
        match = _NUMBERED.match(part)
        return part if match is None else match[1] + places[before, match[1]][match[2]]

    return {name: "_".join(written(*part) for part in _parts(name)) for name in names}


def _parts(name: str) -> list[tuple[str, str]]:
    """Split a name at underscores. Return a (preceding text, part) pair for each part."""
    parts = name.split("_")
    return [("_".join(parts[:i]), part) for i, part in enumerate(parts)]


def by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders ``dense9`` before ``dense10``."""
    return [(int(text), "") if text.isdecimal() else (0, text) for text in re.split(r"(\d+)", name)]


@refusing
def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite parameters with the root's values on every rank of the process set.

    The function waits until the broadcast is complete.

    A Parameter whose shape is not known yet is broadcast when it is initialized, in the first forward pass.

    Args:
        params (Mapping or ParameterDict): NDArrays or Parameters by name, as returned by ``Module.get_params()`` and
            ``Block.collect_params()``. Names must be the same on all ranks, except for MXNet's numbering
            (``on_the_wire``).
        root_rank (int): World rank of the root. Default: 0.
        prefix (str, optional): Prefix of the operations' names, to distinguish calls.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: If the type of ``params`` or of an entry is not supported. The message names it. Also an MXNetError.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost. Also an MXNetError.
    """
    prefix = "" if prefix is None else prefix
    if not isinstance(prefix, str):
        raise ValueError(f"broadcast_parameters: prefix must be a string or None, got {prefix!r}")
    if not isinstance(params, (Mapping, ParameterDict)):
        raise ValueError(
            f"broadcast_parameters: params must be a dict of NDArrays or Parameters, or a ParameterDict, got a "
            f"{type(params).__name__}"
        )
    params = _by_name(params)
    arrays, deferred = _sorted(params)
    wire = {name: f"parameter.{prefix}{short}" for name, short in on_the_wire(params.keys()).items()}
    for name, parameter in deferred:
        _broadcast_once_initialized(parameter, root_rank, wire[name], process_set)
    for name, array in arrays:
        broadcast_(array, root_rank, wire[name], 0, process_set)
    for _, array in arrays:
        array.wait_to_read()


def _by_name(params: Any) -> dict[str, Any]:
    """Map the string form of each key to that key's value.

    Returns:
        The values, by the string form of their keys.

    Raises:
        ValueError: If the string form of a key may differ between ranks, or two keys have the same string form.
    """
    named: dict[str, Any] = {}
    for key in list(params.keys()):
        name = key if isinstance(key, str) else repr(key)
        if not isinstance(key, str) and " at 0x" in name:
            # Reject a key whose string contains a memory address, because ranks could not match it.
            raise ValueError(
                f"broadcast_parameters: keys of params must be names, numbers or tuples of them, got {key!r}, whose "
                "text differs between ranks"
            )
        if name in named:
            raise ValueError(f"broadcast_parameters: keys of params must have different texts, got two keys {name}")
        named[name] = params[key]
    return named


def _sorted(params: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Parameter]]]:
    """Validate all values, and separate named arrays from parameters that have no array yet."""
    arrays: list[tuple[str, Any]] = []
    deferred: list[tuple[str, Parameter]] = []
    for name in sorted(params.keys()):
        value = params[name]
        if isinstance(value, Parameter):
            _check_one_device(value)
            try:
                value = value.data()
            except DeferredInitializationError:
                deferred.append((name, value))
                continue
        code_of(value, f"broadcast_parameters: params[{name!r}]", True)
        arrays.append((name, value))
    return arrays, deferred


def _check_one_device(parameter: Parameter) -> None:
    try:
        devices = parameter.list_ctx()
    except RuntimeError as error:
        # Pass on MXNet's message, which names the parameter and tells the user to call initialize().
        raise ValueError(f"broadcast_parameters: {error}") from None
    if len(devices) > 1:
        raise ValueError(
            f"broadcast_parameters: parameter {parameter.name} must be on one device per process, got "
            f"{len(devices)} devices, {devices}"
        )


def _broadcast_once_initialized(parameter: Parameter, root_rank: int, name: str, process_set: ProcessSet) -> None:
    def initialize(data: Any, devices: Any) -> None:
        # Remove this hook, so that the next line calls the original method of the class.
        parameter.__dict__.pop("_init_impl", None)
        parameter._init_impl(data, devices)
        with mx.autograd.pause():
            array = parameter.data()
            broadcast_(array, root_rank, name, 0, process_set)
            array.wait_to_read()

    # Hook into the parameter's initialization. This replaces the hook that an earlier call has set.
    parameter._init_impl = initialize
