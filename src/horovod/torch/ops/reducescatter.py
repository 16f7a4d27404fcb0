"""Reducescatter, which reduces a tensor over all ranks and gives each rank a part of the result.

Dimension 0 is split in the order of ranks within the process set. If the rows do not divide evenly, the first ranks get
one more.
"""

from collections.abc import Sequence
from typing import Any

import torch

from horovod._core import KIND_REDUCESCATTER
from horovod.common.compression import refuse_wire
from horovod.common.ops import Average, Sum, check_scale, check_scatter, scattered_rows, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.compression import Compression
from horovod.torch.ops import handles
from horovod.torch.ops import tensors as groups
from horovod.torch.ops.allgather import _Allgather, _GroupedAllgather
from horovod.torch.ops.arrays import accepting
from horovod.torch.ops.tensors import code_of, plain, set_id, set_rank_and_size, submitter


def _check(tensor: torch.Tensor, op: int, operation: str, name: str | None) -> int:
    code = code_of(tensor, operation, name)
    what = f"{operation} of tensor {name!r}" if name else operation
    check_scatter(what, code, tensor.dim(), op)
    return code


def _output(tensor: torch.Tensor, process_set: ProcessSet, operation: str) -> torch.Tensor:
    rank, size = set_rank_and_size(process_set, operation)
    return tensor.new_empty((scattered_rows(tensor.shape[0], rank, size), *tensor.shape[1:]))


def _submit(
    tensor: torch.Tensor,
    output: torch.Tensor,
    full_name: str,
    code: int,
    op: int,
    scale: tuple[float, float],
    process_set: ProcessSet,
    group: str = "",
    group_size: int = 0,
) -> Any:
    number = set_id(process_set, "reducescatter")
    source, target = tensor.data_ptr(), output.data_ptr()
    return submitter(tensor, False, output)(
        KIND_REDUCESCATTER,
        full_name,
        source,
        target,
        tensor.shape,
        code,
        op,
        0,
        *scale,
        number,
        None,
        group,
        group_size,
    )


@accepting
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter, and return a handle for ``poll`` and ``synchronize``.

    Args:
        tensor (torch.Tensor): Same as in ``reducescatter``. Do not change it before ``synchronize``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        int: Handle, whose result is this rank's part of the reduction.

    Raises:
        ValueError: If ``reducescatter`` would raise it.
    """
    code = _check(tensor, op, "reducescatter", name)
    check_scale("reducescatter", prescale_factor, postscale_factor)
    output = _output(tensor, process_set, "reducescatter")
    full_name = wire_name("reducescatter", name) if name else ""
    work = _submit(tensor, output, full_name, code, op, (prescale_factor, postscale_factor), process_set)
    return handles.add((work,), lambda: output, (tensor, output))


@accepting
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks and return this rank's rows of the result.

    Each rank gets consecutive rows, in the order of ranks. If the rows do not divide evenly, each of the first ranks
    gets one extra row.

    The operation is differentiable: the output gradients are gathered from all ranks and multiplied by the scale
    factors, and also by the number of ranks if ``op`` is ``Sum``.

    Args:
        tensor (torch.Tensor): Dense, contiguous tensor with at least one dimension. Shape and dtype must be the same on
            all ranks.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        compression (Compressor): Compression applied before the reduction and undone after it; see ``Compression``.
            Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        torch.Tensor: New tensor with this rank's rows.

    Raises:
        ValueError: If an argument is invalid, the name is already in flight, this rank is not in the process set, or
            Horovod is not initialized.
        HorovodInternalError: If ranks disagree, or a rank was lost.
    """
    refuse_wire(compression, "reducescatter")
    compressed, context = compression.compress(tensor)
    scale = (prescale_factor, postscale_factor)
    return compression.decompress(_Reducescatter.apply(compressed, name, op, process_set, scale), context)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, process_set, scale):  # type: ignore[no-untyped-def]
        ctx.arguments = (name, op, process_set, scale)
        return handles.synchronize(reducescatter_async(tensor, name, op, process_set, *scale))

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        name, op, process_set, scale = ctx.arguments
        name = name and f"reducescatter.{name}.gradient"
        gathered = _Allgather.apply(plain(gradient), name, process_set, Sum)
        return _scaled(gathered, op, process_set, scale), None, None, None, None


def _scaled(gathered: torch.Tensor, op: int, process_set: ProcessSet, scale: tuple[float, float]) -> torch.Tensor:
    factor = scale[0] * scale[1]
    if op == Sum:
        factor *= set_rank_and_size(process_set, "reducescatter")[1]
    return gathered if factor == 1.0 else gathered * factor


@accepting
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter of several tensors in a single operation, and return its handle.

    Args:
        tensors (Sequence[torch.Tensor]): Tensors, each as in ``reducescatter``, the same number on all ranks.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the inputs before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.

    Returns:
        int: Handle, whose result is a list of new tensors.

    Raises:
        ValueError: If ``reducescatter`` would raise it.
    """
    tensors = groups.check_list(tensors, "grouped_reducescatter")
    check_scale("grouped_reducescatter", prescale_factor, postscale_factor)
    codes = [_check(tensor, op, "grouped_reducescatter", name) for tensor in tensors]
    outputs = [_output(tensor, process_set, "grouped_reducescatter") for tensor in tensors]
    group, members = groups.group_names("grouped_reducescatter", name, len(tensors), process_set)
    scale = (prescale_factor, postscale_factor)
    works = [
        _submit(tensor, output, member, code, op, scale, process_set, group, len(tensors))
        for tensor, output, member, code in zip(tensors, outputs, members, codes, strict=True)
    ]
    return handles.add(works, lambda: outputs, (tensors, outputs))


@accepting
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reducescatter several tensors in a single operation.

    The operation is differentiable, as ``reducescatter`` is. The gradients are also gathered in a single operation.

    Args:
        tensors (Sequence[torch.Tensor]): Tensors, each as in ``reducescatter``, the same number on all ranks.
        name (str, optional): Name that identifies the group on all ranks. Unnamed groups are matched by call order.
        compression (Compressor): Compression applied before the reduction and undone after it; see ``Compression``.
            Default: none.
        op (int): ``Average`` (default) or ``Sum``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the inputs before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.

    Returns:
        list[torch.Tensor]: This rank's rows of each result, in the order of ``tensors``.

    Raises:
        ValueError: If ``reducescatter`` would raise it.
        HorovodInternalError: If ``reducescatter`` would raise it.
    """
    tensors = groups.check_list(tensors, "grouped_reducescatter")
    refuse_wire(compression, "grouped_reducescatter")
    if not tensors:
        return []
    pairs = [compression.compress(tensor) for tensor in tensors]
    scale = (prescale_factor, postscale_factor)
    reduced = _GroupedReducescatter.apply(name, op, process_set, scale, *(compressed for compressed, _ in pairs))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, process_set, scale, *tensors):  # type: ignore[no-untyped-def]
        ctx.arguments = (name, op, process_set, scale)
        return tuple(handles.synchronize(grouped_reducescatter_async(list(tensors), name, op, process_set, *scale)))

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        name, op, process_set, scale = ctx.arguments
        name = name and f"grouped_reducescatter.{name}.gradient"
        gathered = _GroupedAllgather.apply(name, process_set, Sum, *(plain(gradient) for gradient in gradients))
        return None, None, None, None, *(_scaled(part, op, process_set, scale) for part in gathered)
