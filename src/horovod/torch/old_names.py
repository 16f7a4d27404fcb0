"""Members of a distributed optimizer that programs written for earlier versions of Horovod use."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from horovod.torch.compression import Compression
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import allreduce_async_
from horovod.torch.options import Options


def _compression(reducer: Any) -> Any:
    return Compression.none if reducer is None else reducer.options.compression


class Begun(dict[torch.Tensor, tuple[int, Any]]):
    """Reductions started by the program itself: for each parameter, the handle and the compression context."""

    @contextlib.contextmanager
    def apart(self, reducer: Any) -> Iterator[None]:
        """Set these gradients to None within the context, so that they are not reduced twice.

        On exit the gradients hold the reduced values.
        """
        grads = {p: p.grad for p in self}
        for p in self:
            p.grad = None
        try:
            yield
        finally:
            for p, (handle, context) in self.items():
                p.grad = grads[p]
                result = handles.synchronize(handle)
                if result is not None:  # None if the program has already synchronized the handle
                    with torch.no_grad():
                        p.grad.copy_(_compression(reducer).decompress(result, context))  # type: ignore[union-attr]
            if hasattr(reducer, "coverage"):
                reducer.coverage.leave_alone(self.keys())
            self.clear()


# Members of the class of distributed optimizers; ``self`` is the optimizer. They are not in a base class, because
# programs inspect the optimizer's bases.


def _passes(self: Any) -> int:
    """Return the number of backward passes over which gradients accumulate before they are reduced."""
    passes: int = self._hvd.passes
    return passes


def _requires_update(self: Any) -> set[torch.Tensor]:
    """Return the trainable parameters."""
    return {p for p in self._parameter_names if p.requires_grad}


def _handles(self: Any) -> Begun:
    """Return the dict of operations started with ``_allreduce_grad_async``, by parameter.

    ``synchronize`` and ``step`` wait for them. Gradients of backward passes are not included: they are reduced at the
    end of the pass.
    """
    begun: Begun = self._hvd.begun
    return begun


def allreduce_grad_async(self: Any, p: torch.Tensor) -> tuple[int, Any]:
    """Start to reduce the dense ``p.grad`` with the optimizer's settings. All ranks must do so alike.

    Returns:
        tuple[int, Any]: Handle, and the context for the compressor's ``decompress``.
    """
    reducer = self._hvd.reducer
    assert p.grad is not None
    tensor, context = _compression(reducer).compress(p.grad.detach())
    name = f"{self._parameter_names[p]}.asked"
    if reducer is None:
        return allreduce_async_(tensor, name=name), context
    options: Options = reducer.options
    scale = (options.prescale, options.postscale)
    return allreduce_async_(tensor, None, name, options.op, *scale, options.process_set), context


backward_passes_per_step = property(_passes)
requires_update = property(_requires_update)
started = property(_handles)
