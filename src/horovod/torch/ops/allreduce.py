"""Allreduce, which reduces a tensor over all ranks and gives every rank the result."""

import functools
from typing import Any

import torch

from horovod._core import KIND_ALLREDUCE, WIRE_NONE
from horovod.common.compression import check_wire
from horovod.common.frontends import TORCH as frontend
from horovod.common.frontends import operation_on_rank
from horovod.common.ops import Adasum, Sum, check_differentiable, check_scale, resolve_op, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.weights import check_weight, check_weighted_op, weighted_allreduce
from horovod.torch.compression import Compression
from horovod.torch.ops import handles, repeats
from horovod.torch.ops.arrays import call, is_foreign
from horovod.torch.ops.repeats import create, put_back, run_first, start_first
from horovod.torch.ops.tensors import BOOL, check_reduction, code_of, plain, set_id, submitter


def _wire_name(name: str | None) -> str:
    return wire_name("allreduce", name) if name else ""


def _op_label() -> str:
    return operation_on_rank(frontend, "allreduce")


def submit(
    source: torch.Tensor,
    target: torch.Tensor,
    full_name: str,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    group: str = "",
    group_size: int = 0,
    blocking: bool = False,
    wire: int = WIRE_NONE,
    residual: torch.Tensor | None = None,
) -> Any:
    """Submit one allreduce to the engine.

    The caller keeps all tensors alive until the Work is done. Set ``blocking`` if the caller waits for the Work
    immediately. ``_core.pyi`` describes ``wire`` and ``residual``. The residual must be contiguous, with as many
    elements as ``source``.

    Returns:
        Work of the engine.
    """
    code = code_of(source, "allreduce", full_name)
    if prescale != 1.0 or postscale != 1.0:
        check_scale(_op_label(), prescale, postscale)
    if code == BOOL or op == Adasum:
        check_reduction(code, op, prescale, postscale, process_set, _op_label())
    return submitter(source, blocking, target, residual)(
        KIND_ALLREDUCE,
        full_name,
        source.data_ptr(),
        target.data_ptr(),
        source.shape,
        code,
        op,
        0,
        prescale,
        postscale,
        set_id(process_set, "allreduce"),
        None,
        group,
        group_size,
        wire,
        0 if residual is None else residual.data_ptr(),
    )


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce whose result is a new tensor, and return a handle for ``poll`` and ``synchronize``.

    Args:
        tensor (torch.Tensor): Same as in ``allreduce``. Do not change it before ``synchronize``.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        op (int, optional): Reduction, as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is the reduced tensor.

    Raises:
        ValueError: If ``allreduce`` would raise it.
        NotImplementedError: If ``allreduce`` would raise it.
    """
    if not isinstance(tensor, torch.Tensor) and is_foreign(tensor):
        return call(allreduce_async, tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    how = (prescale_factor, postscale_factor, process_set)
    repeat = repeats.submit(name, tensor, None, op, *how) if average is None else None
    if repeat is not None:
        return handles.add_repeat(repeat, tensor, repeat.result)
    resolved = resolve_op(op, average, _op_label)
    code_of(tensor, "allreduce", name)
    output = torch.empty_like(tensor)
    work = submit(tensor, output, _wire_name(name), resolved, *how)
    return handles.add_repeat(create(work, name, tensor, op, *how), tensor, output)


@start_first
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce in place, and return a handle for ``poll`` and ``synchronize``.

    Args:
        tensor (torch.Tensor): Same as in ``allreduce``; receives the result. Do not read or write it before
            ``synchronize``.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        op (int, optional): Reduction, as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        int: Handle, whose result is ``tensor``.

    Raises:
        ValueError: If ``allreduce`` would raise it.
        NotImplementedError: If ``allreduce`` would raise it.
    """
    if not isinstance(tensor, torch.Tensor) and is_foreign(tensor):
        return call(allreduce_async_, tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    how = (prescale_factor, postscale_factor, process_set)
    # The native callable repeats nothing while a profiler runs, because ``add_repeat`` must record the submission.
    repeat = repeats.submit(name, tensor, tensor, op, *how) if average is None else None
    if repeat is None:
        work = submit(tensor, tensor, _wire_name(name), resolve_op(op, average, _op_label), *how)
        repeat = create(work, name, tensor, op, *how)
    return handles.add_repeat(repeat, tensor, tensor)


@run_first
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks, in place. The operation is not differentiable.

    Args:
        tensor (torch.Tensor): Same as in ``allreduce``; receives the result.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        op (int, optional): Reduction, as in ``allreduce``. Default: ``Average``.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        torch.Tensor: ``tensor``.

    Raises:
        ValueError: If ``allreduce`` would raise it.
        NotImplementedError: If ``allreduce`` would raise it.
        HorovodInternalError: If ``allreduce`` would raise it.
    """
    if not isinstance(tensor, torch.Tensor) and is_foreign(tensor):
        return call(allreduce_, tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    _run(tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    return tensor


def _run(
    source: torch.Tensor,
    target: torch.Tensor,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> None:
    """Run a blocking allreduce from ``source`` into ``target`` that is not a repetition."""
    given = op
    op = resolve_op(op, average, _op_label)
    arguments = (_wire_name(name), op, prescale, postscale, process_set)
    tensors = (source, target)
    work = handles.start(lambda: submit(source, target, *arguments, blocking=True), tensors)
    handles.wait(work, tensors)
    put_back(create(work, name, source, given, prescale, postscale, process_set))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
) -> torch.Tensor:
    """Reduce a tensor over all ranks and return the result as a new tensor.

    The operation is differentiable: the gradient is the allreduce of the output gradient with the same arguments.
    ``Min``, ``Max`` and ``Product`` have no gradient: ``backward()`` raises NotImplementedError.

    Args:
        tensor (torch.Tensor): Dense, contiguous tensor of any shape. Shape and dtype must be the same on all ranks.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        compression (Compressor): Compression applied before the reduction and undone after it; see ``Compression``.
            Default: none.
        op (int, optional): ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum`` (floating-point
            tensors on 2, 4, 8, ... ranks).
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        weight (float, optional): This rank's weight, such as a number of samples, 0 or more. The result is then
            ``sum(weight * tensor) / sum(weight)`` over the ranks, computed in float32 or wider, and zeros if all
            weights are 0. A tensor with weight 0 can be NaN. All ranks must pass it, or none. It requires a
            floating-point tensor, ``Average``, and no scale factors. Default: all ranks have the same weight.

    Returns:
        torch.Tensor: New tensor of the same shape and dtype.

    Raises:
        ValueError: If an argument is invalid, the name is already in flight, this rank is not in the process set, or
            Horovod is not initialized.
        NotImplementedError: If ``op`` is ``Adasum`` and the number of ranks is not a power of two.
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    if not isinstance(tensor, torch.Tensor) and is_foreign(tensor):
        factors = (prescale_factor, postscale_factor)
        return call(allreduce, tensor, average, name, compression, op, *factors, process_set, weight)
    op = resolve_op(op, average, _op_label)
    if weight is not None:
        check_weighted_op(op, weight, prescale_factor, postscale_factor)
        count = torch.tensor(check_weight(weight), dtype=torch.float64, device=tensor.device)
        add = functools.partial(allreduce, op=Sum, process_set=process_set)
        how = None if compression is Compression.none else compression
        return weighted_allreduce(torch, torch.Tensor.to, tensor, count, add, name, how)
    wire = check_wire(compression, tensor, op, "allreduce")
    compressed, context = compression.compress(tensor)
    arguments = (compressed, op, name, prescale_factor, postscale_factor, process_set, wire)
    # Use autograd only if the tensor requires a gradient, because autograd costs more time than a small reduction.
    differentiable = torch.is_grad_enabled() and getattr(compressed, "requires_grad", False)
    reduced = _Allreduce.apply(*arguments) if differentiable else _into_new(*arguments)
    return compression.decompress(reduced, context)


def _into_new(
    tensor: torch.Tensor,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: int,
) -> torch.Tensor:
    if wire == WIRE_NONE:
        result = repeats.run(name, tensor, None, op, prescale, postscale, process_set)
        if result is not None:
            return result
    code_of(tensor, "allreduce", name)
    output = torch.empty_like(tensor)
    if wire == WIRE_NONE:
        _run(tensor, output, None, name, op, prescale, postscale, process_set)
    else:
        arguments = (_wire_name(name), op, prescale, postscale, process_set)
        work = handles.start(lambda: submit(tensor, output, *arguments, blocking=True, wire=wire), (tensor, output))
        handles.wait(work, (tensor, output))
    return output


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, op, name, prescale, postscale, process_set, wire=WIRE_NONE):  # type: ignore[no-untyped-def]
        ctx.arguments = (op, name, prescale, postscale, process_set, wire)
        return _into_new(tensor, op, name, prescale, postscale, process_set, wire)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        op, name, prescale, postscale, process_set, wire = ctx.arguments
        check_differentiable("gradient of allreduce", op)
        name = name and name + ".gradient"
        reduced = _Allreduce.apply(plain(gradient), op, name, prescale, postscale, process_set, wire)
        return reduced, None, None, None, None, None, None
