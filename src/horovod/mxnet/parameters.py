"""Broadcast of parameters from a root rank, including Gluon parameters whose shape is not known yet."""

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
    """Overwrite ``params`` on every rank of the process set with the root's values, and wait for it.

    A Parameter whose shape is not known yet is broadcast when it is initialized, in the first forward pass.

    Args:
        params (Mapping or ParameterDict): NDArrays or Parameters by name, as returned by ``Module.get_params()`` and
            ``Block.collect_params()``. Names must be the same on all ranks, except for MXNet's numbering
            (``names.py``).
        root_rank (int): World rank of the root. Default: 0.
        prefix (str, optional): Prefix of the operations' names, to distinguish calls.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: ``params`` or an entry is not accepted; the message names it. Also an MXNetError.
        HorovodInternalError: Ranks disagree, or a rank was lost. Also an MXNetError.
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
        _broadcast_once_known(parameter, root_rank, wire[name], process_set)
    for name, array in arrays:
        broadcast_(array, root_rank, wire[name], 0, process_set)
    for _, array in arrays:
        array.wait_to_read()


def _by_name(params: Any) -> dict[str, Any]:
    """Return the values by the string form of their keys, which matches them between ranks.

    Raises:
        ValueError: The string form of a key may differ between ranks, or two keys have the same one.
    """
    named: dict[str, Any] = {}
    for key in list(params.keys()):
        name = key if isinstance(key, str) else repr(key)
        if not isinstance(key, str) and " at 0x" in name:  # contains a memory address
            raise ValueError(
                f"broadcast_parameters: keys of params must be names, numbers or tuples of them, got {key!r}, whose "
                "text differs between ranks"
            )
        if name in named:
            raise ValueError(f"broadcast_parameters: keys of params must have different texts, got two keys {name}")
        named[name] = params[key]
    return named


def _sorted(params: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Parameter]]]:
    """Return (arrays by name, parameters without an array yet), after checking all of them."""
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
    except RuntimeError as error:  # the message names the parameter and says to call initialize()
        raise ValueError(f"broadcast_parameters: {error}") from None
    if len(devices) > 1:
        raise ValueError(
            f"broadcast_parameters: parameter {parameter.name} must be on one device per process, got "
            f"{len(devices)} devices, {devices}"
        )


def _broadcast_once_known(parameter: Parameter, root_rank: int, name: str, process_set: ProcessSet) -> None:
    def initialize(data: Any, devices: Any) -> None:
        parameter.__dict__.pop("_init_impl", None)  # from now on, the method of the class applies again
        parameter._init_impl(data, devices)
        with mx.autograd.pause():
            array = parameter.data()
            broadcast_(array, root_rank, name, 0, process_set)
            array.wait_to_read()

    parameter._init_impl = initialize  # replaces the hook of an earlier call, if any
