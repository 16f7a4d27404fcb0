"""Bringing every rank to the root's parameters, those of Gluon that have no shape yet as soon as they have one."""

from collections.abc import Mapping
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.arguments import code_of, refusing
from horovod.mxnet.names import on_the_wire
from horovod.mxnet.operations import broadcast_

__all__ = ["broadcast_parameters"]


@refusing
def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrites ``params`` on every rank of the set with the values of ``root_rank``, a world rank, and waits.

    ``params``: a dict of NDArrays or Parameters, as ``Module.get_params()`` and ``Block.collect_params()`` return it,
    or a ParameterDict, with the same names on all ranks but for what MXNet counts (``names.py``). A Parameter whose
    shape is not known yet is broadcast when it is initialised, in the first forward pass. ``prefix``: before the names,
    to tell calls apart.

    Raises ArgumentError for anything else, naming it; InternalError when ranks disagree or one is lost.
    """
    prefix = "" if prefix is None else prefix
    if not isinstance(prefix, str):
        raise ValueError(f"broadcast_parameters: prefix is {prefix!r}; accepted is text or None")
    if not isinstance(params, (Mapping, ParameterDict)):
        raise ValueError(
            f"broadcast_parameters: params is a {type(params).__name__}; accepted are a dict of NDArrays or Parameters "
            "and a ParameterDict"
        )
    params = _by_name(params)
    arrays, deferred = _sorted(params)
    wire = {name: f"parameter.{prefix}{short}" for name, short in on_the_wire(params.keys()).items()}
    for name, parameter in deferred:
        _broadcast_once_known(parameter, root_rank, wire[name], process_set)
    for name, array in arrays:
        broadcast_(array, root_rank, wire[name], 0, process_set)
    for _, array in arrays:
        array.wait_to_read()


def _by_name(params: Any) -> dict[str, Any]:
    """The values by the text of their keys, which is their name for all ranks. Raises ValueError for a key whose text
    may differ between ranks, and for two of one text."""
    named: dict[str, Any] = {}
    for key in list(params.keys()):
        name = key if isinstance(key, str) else repr(key)
        if not isinstance(key, str) and " at 0x" in name:  # an address
            raise ValueError(
                f"broadcast_parameters: keys of params must be names, numbers or tuples of them, got {key!r}, which "
                "has another text on each rank"
            )
        if name in named:
            raise ValueError(
                f"broadcast_parameters: each key of params must have a text of its own, got two keys {name}"
            )
        named[name] = params[key]
    return named


def _sorted(params: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Parameter]]]:
    """The arrays by name, and the parameters that have none yet. All are checked before the first one travels."""
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
    except RuntimeError as error:  # it says which parameter, and to call initialize()
        raise ValueError(f"broadcast_parameters: {error}") from None
    if len(devices) > 1:
        raise ValueError(
            f"broadcast_parameters: parameter {parameter.name} is on {len(devices)} devices, {devices}; accepted is "
            "one in each process"
        )


def _broadcast_once_known(parameter: Parameter, root_rank: int, name: str, process_set: ProcessSet) -> None:
    def initialize(data: Any, devices: Any) -> None:
        parameter.__dict__.pop("_init_impl", None)  # the class's own is next
        parameter._init_impl(data, devices)
        with mx.autograd.pause():
            array = parameter.data()
            broadcast_(array, root_rank, name, 0, process_set)
            array.wait_to_read()

    parameter._init_impl = initialize  # in the place of an earlier call's, if there was one: the last one counts
