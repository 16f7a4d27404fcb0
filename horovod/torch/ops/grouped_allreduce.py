"""grouped_allreduce: several tensors that are reduced together. Arguments and errors as in ops/allreduce.py."""

from collections.abc import Sequence
from typing import Any

import torch

from horovod._core import WIRE_NONE
from horovod.common.compression import check_wire
from horovod.common.ops import check_differentiable, check_scale, resolve_op
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.compression import Compression
from horovod.torch.ops import groups, handles
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.arrays import accepting
from horovod.torch.ops.repeats import Repeat, put_back, take
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
    """Hands a group to the engine. Every member is checked first: half a group would wait for the other half for
    ever. Its members can be put back when they have completed, if it has a name."""
    count, arguments = len(sources), (op, prescale, postscale, process_set)
    if name:
        group, members = groups.names("grouped_allreduce", name, count, process_set)
        known = [(member, count, wire) for member in members]  # no names that a user can give
        again = _take_group(known, sources, arguments)
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
        group, members = groups.names("grouped_allreduce", name, count, process_set)
        known = [("", count, wire)] * count
    return [
        Repeat(submit(source, target, member, *arguments, group, count, wire=wire), key, source, *arguments)
        for source, target, member, key in zip(sources, targets, members, known, strict=True)
    ]


def _take_group(known: list[Any], sources: Sequence[torch.Tensor], arguments: Any) -> list[Repeat]:
    """The idle Repeats of all members, or none."""
    taken: list[Repeat] = []
    for key, source in zip(known, sources, strict=True):
        repeat = take(key, source, *arguments)
        if repeat is None:
            for other in taken:
                put_back(other)
            return []
        taken.append(repeat)
    return taken


def _add_group(members: list[Repeat], name: str | None, results: list[torch.Tensor], keep: Any) -> int:
    """A handle for a group, whose outcome is ``results``."""

    def finish() -> list[torch.Tensor]:
        if name:  # the next group without one has another number
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
    """Starts an allreduce of several tensors that run and complete together; one handle, whose result is a list."""
    op = resolve_op(op, average, "grouped_allreduce")
    tensors = groups.check(tensors, "grouped_allreduce")
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
    """Like ``grouped_allreduce_async``, in place."""
    op = resolve_op(op, average, "grouped_allreduce")
    tensors = groups.check(tensors, "grouped_allreduce")
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
    """Allreduce of several tensors together, in place; returns them as a list."""
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
    """Allreduce of several tensors together into new tensors; gradients like ``allreduce``, grouped as well."""
    op = resolve_op(op, average, "grouped_allreduce")
    tensors = groups.check(tensors, "grouped_allreduce")
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
