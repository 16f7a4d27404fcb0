"""Grouped allreduce, which reduces several tensors in a single operation."""

from collections.abc import Sequence
from typing import Any

import torch

from horovod._core import WIRE_NONE
from horovod.common.compression import check_wire
from horovod.common.ops import check_differentiable, check_scale, resolve_op
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.compression import Compression
from horovod.torch.ops import handles
from horovod.torch.ops import tensors as groups
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.arrays import accepting
from horovod.torch.ops.repeats import Repeat, create, put_back, take
from horovod.torch.ops.tensors import check_reduction, code_of, plain, set_id


def submit_group(
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: int = WIRE_NONE,
) -> list[Repeat]:
    """Submit a group of allreduces to the engine.

    Every tensor is checked before the first is submitted, because an incomplete group would never finish. If the group
    has a name, the caller can pass the Repeats to ``repeats.put_back`` when they have completed.

    Returns:
        A Repeat (a reusable operation) for each tensor.
    """
    count, arguments = len(sources), (op, prescale, postscale, process_set)
    if name:
        group, members = groups.group_names("grouped_allreduce", name, count, process_set)
        # Use tuples as keys, because they cannot collide with user-supplied names.
        keys = [(member, count, wire) for member in members]
        again = _take_group(keys, sources, arguments)
        if again:
            for repeat, source, target in zip(again, sources, targets, strict=True):
                repeat.work.submit_again(source.data_ptr(), target.data_ptr())
            return again
    for tensor in sources:
        code = code_of(tensor, "grouped_allreduce", name)
        check_reduction(code, op, prescale, postscale, process_set, "grouped_allreduce")
    check_scale("grouped_allreduce", prescale, postscale)
    set_id(process_set, "grouped_allreduce")
    if not name:
        group, members = groups.group_names("grouped_allreduce", name, count, process_set)
        keys = [("", count, wire)] * count
    return [
        create(submit(source, target, member, *arguments, group, count, wire=wire), key, source, *arguments)
        for source, target, member, key in zip(sources, targets, members, keys, strict=True)
    ]


def _take_group(keys: list[Any], sources: Sequence[torch.Tensor], arguments: Any) -> list[Repeat]:
    """Return the reusable operations from this group's previous call, or an empty list if any tensor has none."""
    repeats: list[Repeat] = []
    for key, source in zip(keys, sources, strict=True):
        repeat = take(key, source, *arguments)
        if repeat is None:
            for other in repeats:
                put_back(other)
            return []
        repeats.append(repeat)
    return repeats


def _add_group(members: list[Repeat], name: str | None, results: list[torch.Tensor], keep: Any) -> int:
    """Return a single handle for a group of operations. Waiting for the handle returns the list ``results``."""

    def finish() -> list[torch.Tensor]:
        # Do not keep operations of an unnamed group, because its generated name is different in each call.
        if name:
            for repeat in members:
                put_back(repeat)
        return results

    return handles.add([repeat.work for repeat in members], finish, keep)


@accepting
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce of several tensors in a single operation, and return its handle.

    Args:
        tensors (Sequence[torch.Tensor]): Tensors, each as in ``allreduce``, the same number on all ranks.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        op (int, optional): Reduction, as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the inputs before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is a list of new tensors.

    Raises:
        ValueError: If ``allreduce`` would raise it.
        NotImplementedError: If ``allreduce`` would raise it.
    """
    op = resolve_op(op, average, "grouped_allreduce")
    tensors = groups.check_list(tensors, "grouped_allreduce")
    return _start_group(tensors, name, op, prescale_factor, postscale_factor, process_set, WIRE_NONE)


def _start_group(
    tensors: list[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: int,
) -> int:
    for tensor in tensors:
        code_of(tensor, "grouped_allreduce", name)
    outputs = [torch.empty_like(tensor) for tensor in tensors]
    members = submit_group(tensors, outputs, name, op, prescale, postscale, process_set, wire)
    return _add_group(members, name, outputs, (tensors, outputs))


@accepting
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an in-place allreduce of several tensors in a single operation, and return its handle.

    Args:
        tensors (Sequence[torch.Tensor]): Same as in ``grouped_allreduce``; they receive the results. All ranks must
            pass the same number of tensors.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        op (int, optional): Reduction, as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the inputs before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is ``tensors`` as a list.

    Raises:
        ValueError: If ``allreduce`` would raise it.
        NotImplementedError: If ``allreduce`` would raise it.
    """
    op = resolve_op(op, average, "grouped_allreduce")
    tensors = groups.check_list(tensors, "grouped_allreduce")
    members = submit_group(tensors, tensors, name, op, prescale_factor, postscale_factor, process_set)
    return _add_group(members, name, tensors, tensors)


@accepting
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors over all ranks in a single operation, in place. The operation is not differentiable.

    Args:
        tensors (Sequence[torch.Tensor]): Same as in ``grouped_allreduce``; they receive the results. All ranks must
            pass the same number of tensors.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        op (int, optional): Reduction, as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the inputs before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[torch.Tensor]: ``tensors`` as a list.

    Raises:
        ValueError: If ``allreduce`` would raise it.
        NotImplementedError: If ``allreduce`` would raise it.
        HorovodInternalError: If ``allreduce`` would raise it.
    """
    handle = grouped_allreduce_async_(
        tensors,
        None,
        name,
        resolve_op(op, average, "grouped_allreduce"),
        prescale_factor,
        postscale_factor,
        process_set,
    )
    return handles.synchronize(handle)


@accepting
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors over all ranks in a single operation, and return new tensors.

    The operation is differentiable, as ``allreduce`` is. The gradients are also reduced in a single operation.

    Args:
        tensors (Sequence[torch.Tensor]): Tensors, each as in ``allreduce``, the same number on all ranks.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        compression (Compressor): Compression applied before the reduction and undone after it; see ``Compression``.
            Default: none.
        op (int, optional): Reduction, as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to the inputs before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[torch.Tensor]: New tensors, in the order of ``tensors``.

    Raises:
        ValueError: If ``allreduce`` would raise it.
        NotImplementedError: If ``allreduce`` would raise it.
        HorovodInternalError: If ``allreduce`` would raise it.
    """
    op = resolve_op(op, average, "grouped_allreduce")
    tensors = groups.check_list(tensors, "grouped_allreduce")
    if not tensors:
        return []
    wire = WIRE_NONE
    for tensor in tensors:
        wire = check_wire(compression, tensor, op, "grouped_allreduce")
    pairs = [compression.compress(tensor) for tensor in tensors]
    arguments = (op, name, prescale_factor, postscale_factor, process_set, wire)
    reduced = _GroupedAllreduce.apply(*arguments, *(compressed for compressed, _ in pairs))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, name, prescale, postscale, process_set, wire, *tensors):  # type: ignore[no-untyped-def]
        ctx.arguments = (op, name, prescale, postscale, process_set, wire)
        handle = _start_group(list(tensors), name, op, prescale, postscale, process_set, wire)
        return tuple(handles.synchronize(handle))

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        op, name, prescale, postscale, process_set, wire = ctx.arguments
        check_differentiable("gradient of grouped_allreduce", op)
        name = name and name + ".gradient"
        dense = (plain(gradient) for gradient in gradients)
        reduced = _GroupedAllreduce.apply(op, name, prescale, postscale, process_set, wire, *dense)
        return None, None, None, None, None, None, *reduced
