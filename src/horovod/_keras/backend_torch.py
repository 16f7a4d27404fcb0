"""Adapter for Keras on PyTorch, based on Horovod's PyTorch frontend. See ``backend.Adapter`` for the functions."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import horovod.torch as hvd
from horovod.common.compression import check_wire, leaves_alone, wire_of
from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import wire_name
from horovod.common.process_sets import ProcessSet
from horovod.torch import monitoring
from horovod.torch.mpi_ops import _basics
from horovod.torch.ops import handles, repeats
from horovod.torch.ops import tensors as grouping
from horovod.torch.ops.allgather import sparse_allreduce_async
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.repeats import Repeat
from horovod.torch.ops.tensors import plain

__all__ = ["Compression", "basics", "frontend", "shutdown"]

basics = _basics
Compression = hvd.Compression
shutdown = hvd.shutdown
WANTS_VARIABLES = True
STEPS_SEEN = True
watch_data = monitoring.watch_data_loaders


def reduce_gradients(
    grads: Sequence[torch.Tensor],
    names: Sequence[str],
    *,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    sparse_as_dense: bool,
    groups: Sequence[Sequence[int]] | None,
    process_set: ProcessSet,
    variables: Sequence[Any],
) -> list[torch.Tensor]:
    """Reduce gradients over the ranks.

    All reductions are submitted before the first wait, so that the engine can fuse them.

    Raises:
        ValueError: If a group contains a sparse gradient and ``sparse_as_dense`` is False.
    """
    members = {position: group for group in groups or () for position in group}
    group_names: dict[int, tuple[str, list[str]]] = {}
    for group in groups or ():
        sparse = [i for i in group if grads[i].is_sparse and not sparse_as_dense]
        if sparse:
            raise ValueError(f"groups: gradient {names[sparse[0]]!r} must be dense; set sparse_as_dense=True")
        group_names[id(group)] = grouping.group_names("grouped_allreduce", names[group[0]], len(group), process_set)
    how = (op, prescale, postscale, process_set)
    wire, alone = wire_of(compression), leaves_alone(compression)
    pending = _Pending()
    try:
        for position, (grad, name, variable) in enumerate(zip(grads, names, variables, strict=True)):
            # Reduce in place only if the tensor is a temporary copy or a parameter's own ``grad``. Read the attribute
            # ``_value`` of a Keras variable, because its property ``value`` takes longer than the rest of this loop.
            ours = grad is getattr(variable, "_value", variable).grad
            group = members.get(position)
            full_name, group_name, size = wire_name("allreduce", name), "", 0
            if alone and group is None and not (grad.is_sparse or grad.requires_grad):
                # Fast path for most gradients: resubmit the operation of the previous step.
                repeat = repeats.submit((full_name, 0, wire), grad, grad if ours else None, *how)
                if repeat is not None:
                    pending.add(repeat.result, repeat)
                    continue
            grad = grad.detach()
            if grad.is_sparse and not sparse_as_dense:
                scaled = _scaled(grad, prescale * postscale)
                pending.add(sparse_allreduce_async(scaled, name, op, process_set))
                continue
            grad = grad.to_dense() if grad.is_sparse else grad
            tensor, context = compression.compress(grad)
            tensor = plain(tensor)
            target = tensor if ours or tensor is not grad else torch.empty_like(tensor)
            if group is not None:
                group_name, member_names = group_names[id(group)]
                full_name, size = member_names[list(group).index(position)], len(group)
            check_wire(compression, tensor, op, f"gradient {name!r}")
            known = (full_name, size, wire)
            repeat = repeats.submit(known, tensor, target, *how)
            if repeat is None:
                start = partial(submit, tensor, target, full_name, *how, group_name, size, wire=wire)
                repeat = repeats.create(handles.start(start, (tensor, target)), known, tensor, *how)
                repeat.source, repeat.result = tensor, target
            pending.add(partial(compression.decompress, target, context), repeat)
    except Exception:
        # Raise the first error, because later errors are only consequences of it.
        with contextlib.suppress(Exception):
            pending.results()
        raise
    except BaseException:
        pending.park()
        raise
    return pending.results()


class _Pending:
    """Reductions in flight, which keep alive the tensors that the engine reads and writes.

    When ``results`` returns or raises an Exception, the engine no longer uses the tensors. If an interrupt (Ctrl-C)
    ends the wait, the tensors of unfinished operations are kept alive until the engine has finished.
    """

    def __init__(self) -> None:
        self._repeats: list[Repeat] = []
        self._finish: list[torch.Tensor | Callable[[], torch.Tensor]] = []

    def add(self, finish: torch.Tensor | Callable[[], torch.Tensor], *operations: Repeat) -> None:
        """Add a result, or a function that returns it once ``operations`` are complete."""
        self._repeats += operations
        self._finish.append(finish)

    def results(self) -> list[torch.Tensor]:
        """Wait for all operations. Return their results, or raise the first error."""
        failure: Exception | None = None
        for repeat in self._repeats:
            try:
                # Keep the operation, so that the next step can reuse it.
                handles.wait_for(repeat, None)
            except Exception as error:
                failure = failure or error
            except BaseException:
                self.park()
                raise
        results: list[torch.Tensor] = []
        for finish in self._finish:
            try:
                results.append(finish if isinstance(finish, torch.Tensor) else finish())
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return results

    def park(self) -> None:
        """Keep the tensors of unfinished operations alive, without waiting for the operations."""
        for repeat in self._repeats:
            handles.park(repeat.work, (repeat, repeat.source, repeat.result))


def _parameter(variable: Any) -> Any:
    return getattr(variable, "value", variable)


def _scaled(grad: torch.Tensor, factor: float) -> torch.Tensor:
    return grad if factor == 1.0 else grad * factor


scale = _scaled


def divided_by_size(grad: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    return _scaled(grad, 1.0 / len(process_set.ranks or (0,)))


def key(variable: Any) -> Any:
    """Return the ``id`` of a parameter, or of the parameter wrapped by a Keras variable."""
    return id(_parameter(variable))


def weighing() -> Any:
    """Return the functions for averaging gradients weighted by numbers of samples; see ``backend.Adapter.weighing``."""
    return (torch, torch.Tensor.to, lambda grad: grad.detach().to_dense() if grad.is_sparse else grad.detach())


def convert(value: Any) -> torch.Tensor:
    """Convert a value to a contiguous tensor on the CPU, detached from the autograd graph."""
    if not isinstance(value, torch.Tensor):
        # A Keras variable wraps the parameter.
        inner = getattr(value, "value", value)
        value = inner if isinstance(inner, torch.Tensor) else torch.as_tensor(inner, device="cpu")
    return plain(value.detach())


def allreduce(
    value: Any,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any = Compression.none,
    weight: Any = None,
) -> torch.Tensor:
    factors = {"prescale_factor": prescale, "postscale_factor": postscale, "weight": weight}
    return hvd.allreduce(convert(value), name=name, op=op, compression=compression, **factors)


def allgather(value: Any, name: str | None) -> torch.Tensor:
    return hvd.allgather(convert(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None) -> torch.Tensor:
    return hvd.broadcast(convert(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None, op: int) -> torch.Tensor:
    return hvd.reducescatter(convert(value), name=name, op=op)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
    named = [(f"variable.{position}", _parameter(variable)) for position, variable in enumerate(variables)]
    hvd.broadcast_parameters(named, root_rank, process_set)


def snapshot(variable: Any, into: Any) -> torch.Tensor:
    """Copy the variable's value to the CPU, reusing the memory of ``into`` if shape and dtype match."""
    value = _parameter(variable).detach()
    fits = isinstance(into, torch.Tensor) and into.shape == value.shape and into.dtype == value.dtype
    return into.copy_(value) if fits else torch.empty_like(value, device="cpu").copy_(value)
